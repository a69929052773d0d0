//! Patterns and searches in single texts.

/// Whether `text` matches a pattern of `like`: `%` is any characters, `_` one, a backslash takes the meaning of the
/// next one away.
pub fn like(pattern: &str, text: &str) -> bool {
    let pattern = steps(pattern);
    let text: Vec<char> = text.chars().collect();
    let (mut p, mut t) = (0, 0);
    // Where to go on after the last `%` when the rest does not fit: it takes one character more.
    let mut again: Option<(usize, usize)> = None;
    while t < text.len() {
        match pattern.get(p) {
            Some(Step::Any) => {
                again = Some((p + 1, t));
                p += 1;
            }
            Some(Step::One) => {
                p += 1;
                t += 1;
            }
            Some(Step::Just(char)) if *char == text[t] => {
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
    pattern[p..].iter().all(|step| *step == Step::Any)
}

#[derive(PartialEq)]
enum Step {
    Any,
    One,
    Just(char),
}

fn steps(pattern: &str) -> Vec<Step> {
    let mut steps = Vec::new();
    let mut chars = pattern.chars();
    while let Some(char) = chars.next() {
        steps.push(match char {
            '%' => Step::Any,
            '_' => Step::One,
            '\\' => Step::Just(chars.next().unwrap_or('\\')),
            plain => Step::Just(plain),
        });
    }
    steps
}

/// Whether `text` has `needle`, which is in lower case, in it.
pub fn found(needle: &str, text: &str) -> bool {
    if text.is_ascii() && needle.is_ascii() {
        let (needle, text) = (needle.as_bytes(), text.as_bytes());
        return needle.is_empty()
            || text
                .windows(needle.len())
                .any(|window| window.eq_ignore_ascii_case(needle));
    }
    text.to_lowercase().contains(needle)
}
