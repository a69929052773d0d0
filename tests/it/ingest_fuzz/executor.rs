//! Does steps side by side, except where one has to wait for another: what a step touches is touched in the order of
//! the steps. So the order of acceptance is known for each id, project and name, and nothing else is ordered.

use std::collections::HashMap;

use futures::future::{LocalBoxFuture, Shared};
use futures::stream::FuturesUnordered;
use futures::{FutureExt as _, StreamExt as _};
use tokio::sync::{Semaphore, oneshot};

use super::server::Server;
use super::step::{Key, Mode, Step};

/// Steps that wait or work at a time.
const UNDER_WAY: usize = 96;

/// Ends when a step is done.
type Completion = Shared<oneshot::Receiver<()>>;

/// Those who touched something last.
#[derive(Default)]
struct LastSteps {
    exclusive: Option<Completion>,
    shared: Vec<Completion>,
}

/// Steps under way.
pub struct StepExecutor<'a> {
    server: &'a Server,
    senders: &'a Semaphore,
    tails: HashMap<Key, LastSteps>,
    under_way: FuturesUnordered<LocalBoxFuture<'a, ()>>,
}

impl<'a> StepExecutor<'a> {
    /// As many steps work at a time as `senders` has permits.
    pub fn new(server: &'a Server, senders: &'a Semaphore) -> Self {
        Self {
            server,
            senders,
            tails: HashMap::new(),
            under_way: FuturesUnordered::new(),
        }
    }

    /// Begins a step, once there is room for it.
    pub async fn begin(&mut self, step: Step) {
        while self.under_way.len() >= UNDER_WAY {
            self.under_way.next().await;
        }
        let (done, ends) = oneshot::channel();
        let earlier = self.follow(&step, &ends.shared());
        let (server, senders) = (self.server, self.senders);
        let work = async move {
            for earlier in earlier {
                // A step that was given up has ended, too.
                let _ = earlier.await;
            }
            let _turn = senders.acquire().await.expect("the semaphore is never closed");
            server.perform(step).await;
            let _ = done.send(());
        };
        self.under_way.push(work.boxed_local());
    }

    /// The steps that must be done before this one.
    fn follow(&mut self, step: &Step, ends: &Completion) -> Vec<Completion> {
        let mut earlier = Vec::new();
        for (key, mode) in &step.keys.0 {
            let tail = self.tails.entry(key.clone()).or_default();
            match mode {
                Mode::Shared => {
                    earlier.extend(tail.exclusive.clone());
                    tail.shared.retain(|done| done.peek().is_none());
                    tail.shared.push(ends.clone());
                }
                Mode::Exclusive => {
                    earlier.extend(tail.exclusive.replace(ends.clone()));
                    earlier.append(&mut tail.shared);
                }
            }
        }
        earlier
    }

    /// Waits until every step is done.
    pub async fn finish(&mut self) {
        while self.under_way.next().await.is_some() {}
        self.tails.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ingest_fuzz::step::{Keys, Work};

    fn step(number: usize, keys: &[(Key, Mode)]) -> Step {
        let mut all = Keys::default();
        for (key, mode) in keys {
            all.add(key.clone(), *mode);
        }
        let work = Work::Get {
            tenant: 0,
            runs: Vec::new(),
        };
        Step {
            number,
            keys: all,
            work,
        }
    }

    /// How many steps each one has to wait for.
    #[test]
    fn readers_wait_for_writers_and_writers_for_everybody() {
        let server = Server::nowhere();
        let senders = Semaphore::new(1);
        let mut drive = StepExecutor::new(&server, &senders);
        let (one, other) = (Key::Project(1), Key::Project(2));
        let steps = [
            (vec![(one.clone(), Mode::Shared)], 0),
            (vec![(one.clone(), Mode::Shared)], 0),
            (vec![(one.clone(), Mode::Exclusive), (other.clone(), Mode::Shared)], 2),
            (vec![(other.clone(), Mode::Shared)], 0),
            (vec![(one.clone(), Mode::Shared), (one.clone(), Mode::Exclusive)], 1),
            (vec![(one, Mode::Shared), (other, Mode::Exclusive)], 3),
        ];
        // No one is done.
        let mut kept = Vec::new();
        for (number, (keys, waits)) in steps.into_iter().enumerate() {
            let (done, ends) = oneshot::channel();
            kept.push(done);
            let earlier = drive.follow(&step(number, &keys), &ends.shared());
            assert_eq!(earlier.len(), waits, "step {number}");
        }
    }
}
