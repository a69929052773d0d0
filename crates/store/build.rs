//! Rebuilds when a migration is added, edited or removed, because `sqlx::migrate!` reads them at compile time.
fn main() {
    println!("cargo:rerun-if-changed=migrations");
}
