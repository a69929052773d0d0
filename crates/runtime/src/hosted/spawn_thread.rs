//! The thread that starts children.
//!
//! A child asks the kernel to end it when its parent dies, and the kernel takes the thread that started it for the
//! parent. So all children are started by a thread that lives as long as the process.

use std::io;
use std::sync::OnceLock;
use std::sync::mpsc::{Sender, channel};

use parking_lot::Mutex;
use tokio::process::{Child, Command};
use tokio::runtime::Handle;

struct SpawnRequest {
    command: Command,
    runtime: Handle,
    answer: Sender<io::Result<Child>>,
}

/// Starts a process. Must be called inside a runtime, which receives the process's exit.
pub fn spawn(command: Command) -> io::Result<Child> {
    static ORDERS: OnceLock<Mutex<Sender<SpawnRequest>>> = OnceLock::new();
    let orders = ORDERS.get_or_init(|| {
        let (orders, taken) = channel::<SpawnRequest>();
        let work = move || {
            for mut order in taken {
                let _inside = order.runtime.enter();
                let _ = order.answer.send(order.command.spawn());
            }
        };
        // Without it no order is taken, which the caller sees below.
        let _ = std::thread::Builder::new().name("graph-hosts".to_owned()).spawn(work);
        Mutex::new(orders)
    });
    let (answer, answered) = channel();
    let order = SpawnRequest {
        command,
        runtime: Handle::current(),
        answer,
    };
    let sent = orders.lock().send(order).is_ok();
    match (sent, answered.recv()) {
        (true, Ok(child)) => child,
        _ => Err(io::Error::other("the thread that starts graph hosts has exited")),
    }
}
