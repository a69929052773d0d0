//! The items of a list, unparsed.

use super::scan::Scanner;

/// The texts of a list's items; empty if `text` is not a list. Parsed lazily: iteration stops where the text is not
/// valid JSON.
pub fn items(text: &str) -> impl Iterator<Item = &str> {
    let mut scan = Scanner::new(text);
    scan.skip_whitespace();
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
