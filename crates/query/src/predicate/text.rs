//! Patterns and searches in single texts.

/// Whether `text` matches a `like` pattern: `%` is any characters, `_` is one, and a backslash escapes the next
/// character.
pub fn like(pattern: &str, text: &str) -> bool {
    let pattern = steps(pattern);
    let text: Vec<char> = text.chars().collect();
    let (mut p, mut t) = (0, 0);
    // Where to continue after the last `%` if the rest does not match: it takes one more character.
    let mut again: Option<(usize, usize)> = None;
    while t < text.len() {
        match pattern.get(p) {
            Some(PatternStep::Any) => {
                again = Some((p + 1, t));
                p += 1;
            }
            Some(PatternStep::One) => {
                p += 1;
                t += 1;
            }
            Some(PatternStep::Just(char)) if *char == text[t] => {
                p += 1;
                t += 1;
            }
            _ => match again {
                Some((after, taken)) => {
                    again = Some((after, taken + 1));
                    p = after;
                    t = taken + 1;
                }
                None => return false,
            },
        }
    }
    pattern[p..].iter().all(|step| *step == PatternStep::Any)
}

#[derive(PartialEq)]
enum PatternStep {
    Any,
    One,
    Just(char),
}

fn steps(pattern: &str) -> Vec<PatternStep> {
    let mut steps = Vec::new();
    let mut chars = pattern.chars();
    while let Some(char) = chars.next() {
        steps.push(match char {
            '%' => PatternStep::Any,
            '_' => PatternStep::One,
            '\\' => PatternStep::Just(chars.next().unwrap_or('\\')),
            plain => PatternStep::Just(plain),
        });
    }
    steps
}

/// Whether `text` contains `needle`, which is in lower case.
pub fn contains_ignoring_case(needle: &str, text: &str) -> bool {
    if text.is_ascii() && needle.is_ascii() {
        let (needle, text) = (needle.as_bytes(), text.as_bytes());
        return needle.is_empty()
            || text
                .windows(needle.len())
                .any(|window| window.eq_ignore_ascii_case(needle));
    }
    text.to_lowercase().contains(needle)
}
