//! Histories under chaos: worker sets are killed, drained and started while jobs run, fail, wait, are cancelled and
//! time out. All actions of handlers are recorded; afterwards the rows are compared with the record. The numbers are
//! printed.

mod chaos;
mod check;
mod spawns;
mod walk;
