//! Maintenance of a pool's children: which ones are replaced or stopped.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use super::child::Child;
use super::pool::PoolInner;

/// Pings children, and replaces those that reached their limits. Ends with the pool.
pub(super) async fn maintain(pool: Weak<PoolInner>) {
    loop {
        let Some(pool) = pool.upgrade() else { return };
        let every = pool.options.ping_every;
        check_children(&pool);
        drop(pool);
        tokio::time::sleep(every).await;
    }
}

fn check_children(pool: &Arc<PoolInner>) {
    let options = &pool.options;
    let mut state = pool.state.lock();
    if state.closed {
        return;
    }
    state.children.retain(|child| child.is_alive());
    let mut serving = 0;
    // Of those, the ones that are not blocked.
    let mut free = 0;
    for child in &state.children {
        child.connection.ping();
        let health = child.connection.health();
        let (pid, open) = (child.hello.pid, child.runs());
        if health.last_pong.elapsed() >= options.silent_after {
            tracing::error!(
                host.pid = pid,
                runs = open,
                "stopping a graph host that does not answer"
            );
            child.kill();
            continue;
        }
        if has_stuck_runs(pool, child) {
            tracing::warn!(
                host.pid = pid,
                runs = open,
                "stopping a graph host whose runs do not stop"
            );
            child.kill();
            continue;
        }
        let stray = options.max_stray_threads > 0 && health.stray_threads >= options.max_stray_threads;
        let worn = stray
            || (options.max_runs > 0 && child.served.load(Ordering::Relaxed) >= options.max_runs)
            || (options.max_rss_bytes > 0 && health.rss_bytes >= options.max_rss_bytes);
        let idle = child.last_used.lock().elapsed() >= options.idle_after;
        let spare = idle && open == 0 && serving > 0;
        // It stood in for a blocked child, for long enough.
        let surplus = free >= options.children && child.started_at.elapsed() >= options.idle_after;
        if (worn || spare || surplus) && !child.draining.swap(true, Ordering::Relaxed) {
            tracing::info!(
                host.pid = pid,
                rss_mb = health.rss_bytes >> 20,
                stray_threads = health.stray_threads,
                runs = open,
                "replacing a graph host"
            );
        }
        if !child.draining.load(Ordering::Relaxed) {
            serving += 1;
            free += usize::from(!pool.is_blocked(child));
        } else if open == 0 && child.connection.streams() == 0 {
            child.stop_after(Duration::from_secs(1));
        }
    }
    if serving == 0 && state.starting == 0 && !state.backs_off() {
        PoolInner::start_another(pool, &mut state);
    }
}

/// Whether a child has abandoned runs, and either nothing else, or an event loop that has been blocked so long that its
/// other runs do not progress either.
fn has_stuck_runs(pool: &PoolInner, child: &Child) -> bool {
    let abandoned = child.abandoned.load(Ordering::Relaxed);
    if abandoned == 0 {
        return false;
    }
    let alone = child.runs() <= abandoned && child.connection.streams() <= abandoned;
    alone || pool.lag(child) >= pool.options.stuck_after
}
