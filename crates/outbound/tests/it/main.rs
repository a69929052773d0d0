//! Destinations against a stand-in for S3 and against real folders.

mod bucket;
mod folder;
#[expect(dead_code, reason = "shared with the tests of workflows, which use all of it")]
mod s3;
