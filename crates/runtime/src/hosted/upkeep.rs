//! Looking after the children of a pool: which one is replaced, and which one is ended.

use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError, Weak};
use std::time::Duration;

use super::child::Child;
use super::pool::Inner;

/// Asks children how they are, and replaces those that had their time. Ends with the pool.
pub(super) async fn look_after(pool: Weak<Inner>) {
    loop {
        let Some(pool) = pool.upgrade() else { return };
        let every = pool.options.ping_every;
        look(&pool);
        drop(pool);
        tokio::time::sleep(every).await;
    }
}

fn look(pool: &Arc<Inner>) {
    let options = &pool.options;
    let mut state = pool.state();
    if state.over {
        return;
    }
    state.children.retain(|child| child.lives());
    let mut serving = 0;
    // Of those, the ones that are not blocked.
    let mut free = 0;
    for child in &state.children {
        child.connection.ping();
        let health = child.connection.health();
        let (pid, open) = (child.hello.pid, child.runs());
        if health.heard.elapsed() >= options.silent_after {
            tracing::error!(host.pid = pid, runs = open, "a graph host does not answer; it is ended");
            child.kill();
            continue;
        }
        if keeps_cancelled_runs(pool, child) {
            tracing::warn!(
                host.pid = pid,
                runs = open,
                "a graph host with runs that do not stop is ended"
            );
            child.kill();
            continue;
        }
        let stray = options.max_stray_threads > 0 && health.stray_threads >= options.max_stray_threads;
        let worn = stray
            || (options.max_runs > 0 && child.served.load(Ordering::Relaxed) >= options.max_runs)
            || (options.max_rss_bytes > 0 && health.rss_bytes >= options.max_rss_bytes);
        let idle = child.used.lock().unwrap_or_else(PoisonError::into_inner).elapsed() >= options.idle_after;
        let spare = idle && open == 0 && serving > 0;
        // It stood in for one that was blocked, and has done so for long enough.
        let surplus = free >= options.children && child.since.elapsed() >= options.idle_after;
        if (worn || spare || surplus) && !child.draining.swap(true, Ordering::Relaxed) {
            tracing::info!(
                host.pid = pid,
                rss_mb = health.rss_bytes >> 20,
                stray_threads = health.stray_threads,
                runs = open,
                "a graph host is replaced"
            );
        }
        if !child.draining.load(Ordering::Relaxed) {
            serving += 1;
            free += usize::from(!pool.blocked(child));
        } else if open == 0 && child.connection.streams() == 0 {
            child.retire(Duration::from_secs(1));
        }
    }
    if serving == 0 && state.starting == 0 && !state.backs_off() {
        Inner::start_another(pool, &mut state);
    }
}

/// Whether a child has runs that were given up, and either nothing else, or a loop that has been blocked for so long that
/// what else is in it does not go on either.
fn keeps_cancelled_runs(pool: &Inner, child: &Child) -> bool {
    let abandoned = child.abandoned.load(Ordering::Relaxed);
    if abandoned == 0 {
        return false;
    }
    let alone = child.runs() <= abandoned && child.connection.streams() <= abandoned;
    alone || pool.lag(child) >= pool.options.stuck_after
}
