//! Stopping a run that the server gave up.

use std::time::Duration;

use super::connection::Stream;
use super::frame::Type;
use super::message::Failed;
use super::pool::Seat;

/// Tells a child that nothing counts any more of what a run still saves, and waits for its end, without the caller.
pub(super) fn give_up(stream: Stream, seat: Seat, grace: Duration) {
    stream.send(
        Type::FAIL,
        &Failed {
            kind: "fenced".to_owned(),
            error: "HostLost".to_owned(),
            message: "the server gave the run up".to_owned(),
        },
    );
    if let Ok(runtime) = tokio::runtime::Handle::try_current() {
        runtime.spawn(stop(stream, seat, grace));
    }
}

/// Waits until a run that was given up is over. One that does not end keeps its place, and its child gets no more runs: what
/// else is in the child goes on, and the child is ended once nothing else is.
async fn stop(mut stream: Stream, seat: Seat, grace: Duration) {
    if tokio::time::timeout(grace, over(&mut stream, &seat)).await.is_ok() {
        return;
    }
    tracing::warn!(
        host.pid = seat.child().hello.pid,
        runs = seat.child().runs(),
        "a run does not stop; its graph host gets no more runs"
    );
    let _abandoned = seat.abandon();
    over(&mut stream, &seat).await;
}

/// Returns when the run says that it is over, or its child is gone.
async fn over(stream: &mut Stream, seat: &Seat) {
    let mut frames = Vec::new();
    while stream.next(&mut frames).await > 0 {
        if frames.drain(..).any(|frame| frame.r#type == Type::DONE) {
            return;
        }
    }
    // Until then it is one of the runs that may have been the cause.
    seat.child().gone().await;
}
