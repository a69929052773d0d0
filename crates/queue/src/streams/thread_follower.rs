//! The third connection: events of threads with a reader in this process.
//!
//! ```text
//! towpath:thread:<id>   channel                        "<queue that sent it> <frame>"
//! ```
//! Plain publish and subscribe: events without a reader cost nothing, and lost ones are in the log of the run.

use std::collections::HashSet;
use std::convert::Infallible;
use std::sync::Arc;

use futures::StreamExt;
use parking_lot::Mutex;
use redis::RedisResult;
use redis::aio::{PubSubSink, PubSubStream};
use tokio::sync::{Notify, oneshot};
use towpath_domain::ThreadId;

use super::{BLOCK, Shared, within_deadline};

/// Follow requests of callers. Reset without a session: the next session follows all current threads.
#[derive(Default)]
pub struct FollowRequests {
    changes: Mutex<FollowChanges>,
    ready: Notify,
}

#[derive(Default)]
struct FollowChanges {
    has_session: bool,
    follow: Vec<(ThreadId, oneshot::Sender<()>)>,
    unfollow: Vec<ThreadId>,
}

impl FollowRequests {
    /// Requests to follow a thread; the receiver reports success. `None` without a session.
    pub fn follow(&self, thread: ThreadId) -> Option<oneshot::Receiver<()>> {
        let mut waiting = self.changes.lock();
        if !waiting.has_session {
            return None;
        }
        let (done, followed) = oneshot::channel();
        waiting.follow.push((thread, done));
        drop(waiting);
        self.ready.notify_one();
        Some(followed)
    }

    /// Called when the thread has no reader left.
    pub fn unfollow(&self, thread: ThreadId) {
        let mut waiting = self.changes.lock();
        if waiting.has_session {
            waiting.unfollow.push(thread);
            drop(waiting);
            self.ready.notify_one();
        }
    }

    fn set_open(&self, open: bool) {
        let mut waiting = self.changes.lock();
        // Dropped senders tell the waiting callers that it failed.
        *waiting = FollowChanges {
            has_session: open,
            ..FollowChanges::default()
        };
    }

    async fn take(&self) -> FollowChanges {
        loop {
            {
                let mut waiting = self.changes.lock();
                if !waiting.follow.is_empty() || !waiting.unfollow.is_empty() {
                    return FollowChanges {
                        has_session: true,
                        follow: std::mem::take(&mut waiting.follow),
                        unfollow: std::mem::take(&mut waiting.unfollow),
                    };
                }
            }
            self.ready.notified().await;
        }
    }
}

/// Follows threads during one session.
pub struct ThreadFollower<'s> {
    shared: &'s Shared,
    sink: PubSubSink,
    stream: PubSubStream,
    followed: HashSet<ThreadId>,
}

impl<'s> ThreadFollower<'s> {
    /// Follows the threads that already have readers.
    pub async fn start(shared: &'s Shared) -> RedisResult<Self> {
        let (sink, stream) = within_deadline(shared.client.get_async_pubsub()).await?.split();
        let mut feed = Self {
            shared,
            sink,
            stream,
            followed: HashSet::new(),
        };
        // From now on requests are kept for this session; earlier readers are in the list below.
        shared.follow_requests.set_open(true);
        feed.sink
            .follow(shared, &mut feed.followed, shared.listeners.events.threads())
            .await?;
        Ok(feed)
    }

    /// Delivers frames until an error.
    pub async fn run(&mut self) -> RedisResult<Infallible> {
        let Self {
            shared,
            sink,
            stream,
            followed,
        } = self;
        let shared = *shared;
        let receive = async {
            while let Some(message) = stream.next().await {
                shared.deliver_frame(message.get_channel_name(), message.get_payload_bytes());
            }
            Err(closed_error())
        };
        let follow = async {
            loop {
                let Ok(wishes) = tokio::time::timeout(BLOCK, shared.follow_requests.take()).await else {
                    // A half-open connection is only detected by using it.
                    let _: redis::Value = within_deadline(sink.ping()).await?;
                    continue;
                };
                let threads = wishes.follow.iter().map(|wish| wish.0).collect();
                sink.follow(shared, followed, threads).await?;
                for (_, done) in wishes.follow {
                    let _ = done.send(());
                }
                // It may have a reader again.
                let read: HashSet<ThreadId> = shared.listeners.events.threads().into_iter().collect();
                let left: Vec<String> = wishes
                    .unfollow
                    .into_iter()
                    .filter(|thread| !read.contains(thread) && followed.remove(thread))
                    .map(|thread| shared.thread_key(thread))
                    .collect();
                if !left.is_empty() {
                    within_deadline(sink.unsubscribe(&left)).await?;
                }
            }
        };
        tokio::select! {
            ended = receive => ended,
            ended = follow => ended,
        }
    }
}

impl Drop for ThreadFollower<'_> {
    fn drop(&mut self) {
        self.shared.follow_requests.set_open(false);
    }
}

trait ThreadSubscription {
    async fn follow(
        &mut self,
        shared: &Shared,
        followed: &mut HashSet<ThreadId>,
        threads: Vec<ThreadId>,
    ) -> RedisResult<()>;
}

impl ThreadSubscription for PubSubSink {
    async fn follow(
        &mut self,
        shared: &Shared,
        followed: &mut HashSet<ThreadId>,
        threads: Vec<ThreadId>,
    ) -> RedisResult<()> {
        let new: Vec<String> = threads
            .into_iter()
            .filter(|thread| followed.insert(*thread))
            .map(|thread| shared.thread_key(thread))
            .collect();
        if new.is_empty() {
            return Ok(());
        }
        within_deadline(self.subscribe(&new)).await
    }
}

impl Shared {
    pub(super) fn thread_key(&self, thread: ThreadId) -> String {
        format!("{}thread:{thread}", self.prefix)
    }

    fn deliver_frame(&self, channel: &str, payload: &[u8]) {
        let thread = channel
            .strip_prefix(&self.prefix)
            .and_then(|rest| rest.strip_prefix("thread:"))
            .and_then(|id| id.parse().ok());
        let frame = str::from_utf8(payload).ok().and_then(|text| text.split_once(' '));
        if let (Some(thread), Some((by, frame))) = (thread, frame)
            && by != self.origin
        {
            self.listeners.events.publish(thread, &Arc::from(frame));
        }
    }
}

fn closed_error() -> redis::RedisError {
    redis::RedisError::from((redis::ErrorKind::Io, "the connection was closed"))
}
