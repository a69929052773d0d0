//! Items of a list as they were sent.

use super::scan::Scan;

/// The texts of a list's items; none if `text` is no list. Each is looked at when it is asked for, and the last one comes
/// before where the text stops being JSON.
pub fn items(text: &str) -> impl Iterator<Item = &str> {
    let mut scan = Scan::new(text);
    scan.blank();
    let mut more = scan.peek() == Some(b'[') && scan.open(b']');
    std::iter::from_fn(move || {
        if !more {
            return None;
        }
        let item = scan.value().ok();
        more = item.is_some() && scan.next(b']').unwrap_or(false);
        item
    })
}
