//! Histories under chaos: worker sets are killed, drained and started while jobs run, fail, wait, are cancelled and
//! time out; everything that handlers do is written down; afterwards the rows and the record are held against each
//! other. The numbers are printed.

mod chaos;
mod check;
mod spawns;
mod walk;
