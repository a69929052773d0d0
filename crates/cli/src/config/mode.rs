//! What a process is for, and what its command line sets.

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// `towpath dev` and `towpath demo`: everything in one process on this machine.
    Dev,
    /// `towpath serve` with the API among its roles.
    Api,
    /// `towpath serve --role worker`, perhaps with the scheduler.
    Worker,
    /// `towpath serve --role scheduler`.
    Scheduler,
    /// `towpath agent`.
    Agent,
}

#[derive(Clone, Debug)]
pub struct Flag {
    pub key: &'static str,
    /// As written on the command line.
    pub name: &'static str,
    pub value: String,
}
