//! The tables of metrics: each crate names its own in one, with their kinds and what they mean.

/// Declares metrics: a constant for each name, and a function that describes all of them to the recorder.
///
/// Those marked `from_start` exist from the first scrape, so that an alert can tell zero from unknown. Kinds are
/// `counter`, `gauge` and `histogram`. The caller's crate depends on `metrics`.
#[macro_export]
macro_rules! metric_table {
    (@describe counter $name:ident $meaning:literal) => { ::metrics::describe_counter!($name, $meaning) };
    (@describe gauge $name:ident $meaning:literal) => { ::metrics::describe_gauge!($name, $meaning) };
    (@describe histogram $name:ident $meaning:literal) => { ::metrics::describe_histogram!($name, $meaning) };
    (@from_start counter $name:ident) => { ::metrics::counter!($name).absolute(0) };
    (@from_start gauge $name:ident) => { ::metrics::gauge!($name).set(0.0) };
    (
        $visibility:vis fn $describe:ident;
        $($kind:ident $name:ident = $text:literal, $meaning:literal $(, $start:ident)?;)*
    ) => {
        $(pub(crate) const $name: &str = $text;)*

        $visibility fn $describe() {
            $(
                $crate::metric_table!(@describe $kind $name $meaning);
                $($crate::metric_table!(@$start $kind $name);)?
            )*
        }
    };
}
