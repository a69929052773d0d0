//! Stopping a run that the server gave up.

use std::time::Duration;

use super::connection::Stream;
use super::frame::FrameType;
use super::message::CallFailure;
use super::pool::ChildLease;

/// Tells a child that later saves of a run are void, and waits for its end in the background.
pub(super) fn abandon(stream: Stream, seat: ChildLease, grace: Duration) {
    stream.send(
        FrameType::FAIL,
        &CallFailure {
            kind: "fenced".to_owned(),
            error: "HostLost".to_owned(),
            message: "the server abandoned the run".to_owned(),
        },
    );
    if let Ok(runtime) = tokio::runtime::Handle::try_current() {
        runtime.spawn(wait_or_drain(stream, seat, grace));
    }
}

/// Waits until an abandoned run is over. A run that does not end keeps its slot, and its child gets no new runs: other
/// runs in the child continue, and the child is stopped after them.
async fn wait_or_drain(mut stream: Stream, seat: ChildLease, grace: Duration) {
    if tokio::time::timeout(grace, wait_done(&mut stream, &seat)).await.is_ok() {
        return;
    }
    tracing::warn!(
        host.pid = seat.child().hello.pid,
        runs = seat.child().runs(),
        "a run does not stop; its graph host accepts no new runs"
    );
    let _abandoned = seat.abandon();
    wait_done(&mut stream, &seat).await;
}

/// Returns when the run reports its end, or its child is gone.
async fn wait_done(stream: &mut Stream, seat: &ChildLease) {
    let mut frames = Vec::new();
    while stream.next(&mut frames).await > 0 {
        if frames.drain(..).any(|frame| frame.r#type == FrameType::DONE) {
            return;
        }
    }
    // Until then it counts among the possible causes of a crash.
    seat.child().wait_exit().await;
}
