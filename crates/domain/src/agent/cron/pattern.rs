//! A regular expression for schedules, used in the OpenAPI description.

use super::{Field, MONTH, WEEKDAY};

/// The pattern of schedules. It covers spaces but not tabs and line feeds as separators.
#[must_use]
pub fn pattern() -> String {
    let minute = list(&part("[0-5]?[0-9]"));
    let hour = list(&part("([01]?[0-9]|2[0-3])"));
    let day = list(&format!("({}|[Ll])", part("(0?[1-9]|[12][0-9]|3[01])")));
    let month = list(&part(&value("0?[1-9]|1[0-2]", &MONTH)));
    let weekday = value("0?[0-7]", &WEEKDAY);
    let weekday = list(&format!("({}(#[1-5])?|[Ll]{weekday})", part(&weekday)));
    let second = list(&part("[0-5]?[0-9]"));
    let year = list(&part("(19[7-9][0-9]|20[0-9]{2})"));
    let names = ["hourly", "daily", "midnight", "weekly", "monthly", "yearly", "annually"];
    let names = names.map(any_case).join("|");
    format!("^ *({minute} +{hour} +{day} +{month} +{weekday}( +{second}( +{year})?)?|@({names})) *$")
}

/// A number, or one of the field's words.
fn value(numbers: &str, field: &Field) -> String {
    let words: Vec<String> = field.words.iter().map(|word| any_case(word)).collect();
    format!("({numbers}|{})", words.join("|"))
}

fn part(value: &str) -> String {
    format!("([*?]|{value}(-{value})?)(/0*[1-9][0-9]{{0,5}})?")
}

fn list(part: &str) -> String {
    format!("{part}(,{part})*")
}

fn any_case(word: &str) -> String {
    let both = |letter: char| format!("[{}{}]", letter.to_ascii_uppercase(), letter.to_ascii_lowercase());
    word.chars().map(both).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::Schedule;
    use super::*;

    /// Strings that match the pattern. The generator does not support anchors.
    fn described() -> impl Strategy<Value = String> {
        let pattern = pattern();
        let bare = pattern.trim_start_matches('^').trim_end_matches('$');
        proptest::string::string_regex(bare).expect("it is a regular expression")
    }

    proptest! {
        #[test]
        fn what_matches_is_a_schedule(text in described()) {
            prop_assume!(text.len() <= super::super::LONGEST);
            prop_assert!(text.parse::<Schedule>().is_ok(), "{text:?}");
        }
    }
}
