//! `towpath demo`, small.

use crate::{err, out, run};

#[test]
fn the_demo_reads_back_what_it_sent() {
    let folder = tempfile::tempdir().unwrap();
    let output = run(
        folder.path(),
        &["demo", "--runs", "500", "--connections", "2", "--data-dir", "kept"],
    );
    assert!(output.status.success(), "{}{}", out(&output), err(&output));
    let told = out(&output);
    assert!(told.contains("500 different ids"), "{told}");
    assert!(told.contains("as many as were sent, each once"), "{told}");
    assert!(told.contains("curl -s"), "{told}");
    // A second demo in the same folder starts its own project and export, even after a killed one.
    let again = run(folder.path(), &["demo", "--runs", "300", "--data-dir", "kept"]);
    assert!(again.status.success(), "{}{}", out(&again), err(&again));
    assert!(out(&again).contains("300 different ids"), "{}", out(&again));
}

#[test]
fn the_demo_leaves_nothing_behind() {
    let folder = tempfile::tempdir().unwrap();
    let temporary = folder.path().join("tmp");
    std::fs::create_dir(&temporary).unwrap();
    let output = crate::towpath(folder.path(), &["demo", "--runs", "50"])
        .env("TMPDIR", &temporary)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}{}", out(&output), err(&output));
    assert_eq!(std::fs::read_dir(&temporary).unwrap().count(), 0);
    assert_eq!(
        std::fs::read_dir(folder.path()).unwrap().count(),
        1,
        "only the folder this test made"
    );
}
