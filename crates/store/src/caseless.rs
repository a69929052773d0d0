//! Case-insensitive substring search with the same result on both databases.
//!
//! `lower()` only knows ASCII on SQLite, and the database's locale on PostgreSQL. So the pattern names both cases of
//! each letter: `[eE]`, `[éÉ]`. That needs no additional column and no locale. It costs as much as `LIKE '%…%'`;
//! neither uses an index.

use crate::tx::Dialect;

/// The operator that matches a [`pattern`].
pub const fn operator(dialect: Dialect) -> &'static str {
    match dialect {
        Dialect::Sqlite => " GLOB ",
        Dialect::Postgres => " ~ ",
    }
}

/// What matches texts that have `part` in them.
pub fn pattern(dialect: Dialect, part: &str) -> String {
    let mut pattern = String::with_capacity(4 * part.len() + 2);
    for letter in part.chars() {
        let cases = cases(letter);
        let special = match dialect {
            Dialect::Sqlite => "*?[".contains(letter),
            Dialect::Postgres => r"\^$.*+?()[]{}|".contains(letter),
        };
        match (cases.as_slice(), special) {
            ([letter], false) => pattern.push(*letter),
            ([letter], true) if dialect == Dialect::Postgres => pattern.extend(['\\', *letter]),
            (cases, _) => {
                pattern.push('[');
                pattern.extend(cases);
                pattern.push(']');
            }
        }
    }
    match dialect {
        Dialect::Sqlite => format!("*{pattern}*"),
        Dialect::Postgres => pattern,
    }
}

/// A letter in its cases, as far as each is one letter.
fn cases(letter: char) -> Vec<char> {
    fn one(mut letters: impl Iterator<Item = char>) -> Option<char> {
        letters.next().filter(|_| letters.next().is_none())
    }
    let lower = one(letter.to_lowercase()).unwrap_or(letter);
    let upper = one(letter.to_uppercase()).unwrap_or(letter);
    let mut cases = vec![letter, lower, upper];
    cases.extend(one(lower.to_uppercase()));
    cases.extend(one(upper.to_lowercase()));
    cases.sort_unstable();
    cases.dedup();
    cases
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn letters_are_named_in_both_cases_and_signs_mean_themselves() {
        for (part, sqlite, postgres) in [
            ("", "**", ""),
            ("a1", "*[Aa]1*", "[Aa]1"),
            ("ÉТ", "*[Éé][Тт]*", "[Éé][Тт]"),
            ("100%_", "*100%_*", "100%_"),
            ("*?[]^", "*[*][?][[]]^*", r"\*\?\[\]\^"),
            (r"(.)\", r"*(.)\*", r"\(\.\)\\"),
            ("ßİ", "*ßİ*", "ßİ"),
            ("-日", "*-日*", "-日"),
        ] {
            assert_eq!(pattern(Dialect::Sqlite, part), sqlite);
            assert_eq!(pattern(Dialect::Postgres, part), postgres);
        }
    }
}
