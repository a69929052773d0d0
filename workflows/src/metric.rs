//! What workflows count.

use metrics::Unit;

pub(crate) const EXPORT_ROWS: &str = "towpath_export_rows_total";
pub(crate) const EXPORT_BYTES: &str = "towpath_export_bytes_total";
pub(crate) const EXPORT_FILES: &str = "towpath_export_files_total";

/// Says what the metrics of this room mean.
pub fn describe() {
    metrics::describe_counter!(EXPORT_ROWS, Unit::Count, "Rows in finished files of exports");
    metrics::describe_counter!(EXPORT_BYTES, Unit::Bytes, "Bytes of finished files of exports");
    metrics::describe_counter!(EXPORT_FILES, Unit::Count, "Finished files of exports");
    for name in [EXPORT_ROWS, EXPORT_BYTES, EXPORT_FILES] {
        metrics::counter!(name).absolute(0);
    }
}
