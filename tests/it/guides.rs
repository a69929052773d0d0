//! The guides quote what the program says: each quoted text is in a source.

use crate::{sources, tree};

/// Headers of tables whose first column quotes the program.
const QUOTING_TABLES: [&str; 2] = ["| You see |", "| Status and text |"];
/// Fewer words in a row would be found anywhere.
const MIN_WORDS: usize = 3;
/// Texts of git, Python, DuckDB and the operating system, which the program passes on.
const FOREIGN: [&str; 4] = [
    "Address already in use",
    "does not appear to be a git repository",
    "No module named",
    "Hive partition mismatch between file",
];

/// The first cells of the rows of tables that quote, with their lines.
fn quoting_cells(page: &str) -> Vec<(usize, &str)> {
    let mut cells = Vec::new();
    let mut quotes = false;
    for (number, line) in page.lines().enumerate() {
        let Some(row) = line.strip_prefix('|') else {
            quotes = false;
            continue;
        };
        if QUOTING_TABLES.iter().any(|header| line.starts_with(header)) {
            quotes = true;
        } else if quotes && !row.starts_with("---") {
            let mut is_code = false;
            let end = row.find(|c: char| {
                is_code ^= c == '`';
                c == '|' && !is_code
            });
            cells.push((number + 1, &row[..end.unwrap_or(row.len())]));
        }
    }
    cells
}

/// The text with `…` for what stands in quotation marks: names that the program filled in.
fn without_quoted(text: &str) -> String {
    let mut kept = String::new();
    let mut rest = text;
    loop {
        let opens = |&(at, c): &(usize, char)| {
            // Behind a letter it is an apostrophe.
            (c == '"' || c == '\'') && !rest[..at].ends_with(char::is_alphanumeric)
        };
        let Some((open, mark)) = rest.char_indices().find(opens) else {
            break;
        };
        let Some(length) = rest[open + 1..].find(mark) else {
            break;
        };
        kept.push_str(&rest[..open]);
        kept.push('…');
        rest = &rest[open + 1 + length + 1..];
    }
    kept + rest
}

/// Whether a word is a value of the example: a number, a path, a setting, an id.
fn is_filled_in(word: &str) -> bool {
    let word = word.trim_end_matches([',', ';', '.']);
    let is_variable = word.contains('_') && !word.contains(char::is_lowercase);
    word == "ID" || is_variable || word.contains(|c: char| c.is_numeric() || c == '/' || c == '.')
}

/// The parts of a quoted text that the program wrote in one literal.
fn fixed_parts(text: &str) -> Vec<String> {
    let text = without_quoted(text);
    let parts = text.split(['…', ':', '(', ')']).flat_map(|part| {
        let words: Vec<&str> = part.split_whitespace().collect();
        words
            .split(|word| is_filled_in(word))
            .filter(|words| words.len() >= MIN_WORDS)
            .map(|words| words.join(" ").trim_matches([',', ';', '.']).to_owned())
            .collect::<Vec<_>>()
    });
    parts.collect()
}

/// The literals of a Rust source as the program prints them, one a line.
fn rust_text(source: &str) -> String {
    let mut text = String::new();
    for (_, literal) in tree::string_literals(&sources::product_part(source)) {
        let mut lines = literal.split("\\\n");
        text.push_str(lines.next().unwrap_or_default());
        for line in lines {
            text.push_str(line.trim_start());
        }
        text.push('\n');
    }
    text.replace("\\\"", "\"").replace('`', "")
}

/// A Python source with its adjacent literals joined.
fn python_text(source: &str) -> String {
    let mut text = String::new();
    for line in source.lines().map(str::trim) {
        match line.strip_prefix("f\"").or_else(|| line.strip_prefix('"')) {
            Some(rest) if text.ends_with('"') => {
                text.pop();
                text.push_str(rest);
            }
            _ => {
                text.push('\n');
                text.push_str(line);
            }
        }
    }
    text
}

/// Everything that the program can say.
fn said() -> String {
    let mut said = String::new();
    for file in tree::files() {
        if file.starts_with("tests/") || file.contains("/tests/") {
            continue;
        }
        if file.ends_with(".rs") {
            said.push_str(&rust_text(&tree::read(&file)));
        } else if file.starts_with("crates/") && file.ends_with(".py") {
            said.push_str(&python_text(&tree::read(&file)));
        }
    }
    said
}

#[test]
fn guides_quote_what_the_program_says() {
    let said = said();
    let (mut wrong, mut checked) = (Vec::new(), 0);
    for file in tree::files()
        .iter()
        .filter(|file| file.starts_with("docs/guides/") && file.ends_with(".md"))
    {
        let page = tree::read(file);
        for (line, cell) in quoting_cells(&page) {
            for part in cell.split('`').skip(1).step_by(2).flat_map(fixed_parts) {
                checked += 1;
                if !FOREIGN.contains(&part.as_str()) && !said.contains(&part) {
                    wrong.push(format!("{file}:{line}: {part}"));
                }
            }
        }
    }
    assert!(checked > 50, "only {checked} texts were found in the guides");
    assert!(
        wrong.is_empty(),
        "the guides quote what the program does not say:\n{}",
        wrong.join("\n")
    );
}

#[test]
fn quoted_texts_are_cut_at_what_is_filled_in() {
    let cut = fixed_parts("graph \"a b c\": it's not a graph of 12 nodes that ID can load; see a.json");
    assert_eq!(cut, ["it's not a graph of", "can load; see"]);
    let page = "| You see | Do |\n|---|---|\n| `a | b` and `c` | d |\n\n| Other |\n| `e` |\n";
    assert_eq!(quoting_cells(page), [(3, " `a | b` and `c` ")]);
    let source = "fail(\"one \\\n     two `three`\");\n#[cfg(test)]\nmod tests {\n\"four\"";
    assert_eq!(rust_text(source), "one two three\n");
    assert_eq!(
        python_text("print(\n    f\"one \"\n    \"two\")"),
        "\nprint(\nf\"one two\")"
    );
}
