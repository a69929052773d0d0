//! Destinations against a stand-in for S3 and against real folders.

mod bucket;
mod folder;
mod s3;
