//! The third connection: events of threads that somebody in this process reads.
//!
//! ```text
//! towpath:thread:<id>   channel                        "<queue that sent it> <frame>"
//! ```
//! Plain publish and subscribe: what nobody reads costs nothing, and what is lost is in the log of the run.

use std::collections::HashSet;
use std::convert::Infallible;
use std::sync::{Arc, Mutex, PoisonError};

use futures::StreamExt;
use redis::RedisResult;
use redis::aio::{PubSubSink, PubSubStream};
use tokio::sync::{Notify, oneshot};
use towpath_domain::ThreadId;

use super::{BLOCK, Shared, within_deadline};

/// What callers want followed. Kept while there is no session: the next one follows whatever is read by then.
#[derive(Default)]
pub struct Wishes {
    waiting: Mutex<Waiting>,
    ready: Notify,
}

#[derive(Default)]
struct Waiting {
    open: bool,
    follow: Vec<(ThreadId, oneshot::Sender<()>)>,
    unfollow: Vec<ThreadId>,
}

impl Wishes {
    /// Wants a thread followed; the answer comes when it is. `None` while there is no session.
    pub fn follow(&self, thread: ThreadId) -> Option<oneshot::Receiver<()>> {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        if !waiting.open {
            return None;
        }
        let (done, followed) = oneshot::channel();
        waiting.follow.push((thread, done));
        drop(waiting);
        self.ready.notify_one();
        Some(followed)
    }

    /// Nobody reads the thread any more.
    pub fn unfollow(&self, thread: ThreadId) {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        if waiting.open {
            waiting.unfollow.push(thread);
            drop(waiting);
            self.ready.notify_one();
        }
    }

    fn set_open(&self, open: bool) {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        // Dropped answers tell those who wait that it will not be.
        *waiting = Waiting {
            open,
            ..Waiting::default()
        };
    }

    async fn take(&self) -> Waiting {
        loop {
            {
                let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
                if !waiting.follow.is_empty() || !waiting.unfollow.is_empty() {
                    return Waiting {
                        open: true,
                        follow: std::mem::take(&mut waiting.follow),
                        unfollow: std::mem::take(&mut waiting.unfollow),
                    };
                }
            }
            self.ready.notified().await;
        }
    }
}

/// Follows threads for one session.
pub struct Feed<'s> {
    shared: &'s Shared,
    sink: PubSubSink,
    stream: PubSubStream,
    followed: HashSet<ThreadId>,
}

impl<'s> Feed<'s> {
    /// Follows what is read already.
    pub async fn start(shared: &'s Shared) -> RedisResult<Self> {
        let (sink, stream) = within_deadline(shared.client.get_async_pubsub()).await?.split();
        let mut feed = Self {
            shared,
            sink,
            stream,
            followed: HashSet::new(),
        };
        // From here on wishes are kept for this session; whoever read before is among the readers below.
        shared.wishes.set_open(true);
        feed.sink
            .follow(shared, &mut feed.followed, shared.board.events.threads())
            .await?;
        Ok(feed)
    }

    /// Hands frames over for ever.
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
                shared.hand_over_frame(message.get_channel_name(), message.get_payload_bytes());
            }
            Err(closed())
        };
        let follow = async {
            loop {
                let Ok(wishes) = tokio::time::timeout(BLOCK, shared.wishes.take()).await else {
                    // A half-open connection shows only when it is used.
                    let _: redis::Value = within_deadline(sink.ping()).await?;
                    continue;
                };
                let threads = wishes.follow.iter().map(|wish| wish.0).collect();
                sink.follow(shared, followed, threads).await?;
                for (_, done) in wishes.follow {
                    let _ = done.send(());
                }
                // Somebody may read it again by now.
                let read: HashSet<ThreadId> = shared.board.events.threads().into_iter().collect();
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

impl Drop for Feed<'_> {
    fn drop(&mut self) {
        self.shared.wishes.set_open(false);
    }
}

/// Following threads.
trait Follow {
    async fn follow(
        &mut self,
        shared: &Shared,
        followed: &mut HashSet<ThreadId>,
        threads: Vec<ThreadId>,
    ) -> RedisResult<()>;
}

impl Follow for PubSubSink {
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
    /// The channel that carries the events of a thread.
    pub(super) fn thread_key(&self, thread: ThreadId) -> String {
        format!("{}thread:{thread}", self.prefix)
    }

    fn hand_over_frame(&self, channel: &str, payload: &[u8]) {
        let thread = channel
            .strip_prefix(&self.prefix)
            .and_then(|rest| rest.strip_prefix("thread:"))
            .and_then(|id| id.parse().ok());
        let frame = str::from_utf8(payload).ok().and_then(|text| text.split_once(' '));
        if let (Some(thread), Some((by, frame))) = (thread, frame)
            && by != self.origin
        {
            self.board.events.publish(thread, &Arc::from(frame));
        }
    }
}

fn closed() -> redis::RedisError {
    redis::RedisError::from((redis::ErrorKind::Io, "the connection was closed"))
}
