//! Code as HTML, with its comments and strings marked. That is most of what colours are good for, and needs no grammar.

/// Code in a language, by the name that stands at its fence.
pub(super) fn highlighted(language: &str, code: &str) -> String {
    let comment = match language {
        "sh" | "bash" | "console" | "python" | "toml" | "yaml" | "dockerfile" => "#",
        "sql" => "--",
        "js" | "javascript" | "ts" | "typescript" => "//",
        "json" => "",
        _ => return escaped(code),
    };
    let over_lines = matches!(language, "sh" | "bash" | "console");
    let mut marks = vec!['"', '\''];
    marks.extend(comment.chars().next());
    let mut html = String::with_capacity(code.len() + code.len() / 4);
    let mut rest = code;
    let mut before = '\n';
    while let Some(first) = rest.chars().next() {
        let string = || {
            let quote = matches!(first, '"' | '\'').then_some(first)?;
            string_length(rest, quote, over_lines)
        };
        let (class, length) = if !comment.is_empty() && before.is_whitespace() && rest.starts_with(comment) {
            (Some("comment"), rest.find('\n').unwrap_or(rest.len()))
        } else if let Some(length) = string() {
            (Some("string"), length)
        } else {
            let begin = first.len_utf8();
            let length = rest[begin..].find(marks.as_slice());
            (None, length.map_or(rest.len(), |length| begin + length))
        };
        let (piece, left) = rest.split_at(length);
        match class {
            Some(class) => {
                html.push_str("<span class=\"");
                html.push_str(class);
                html.push_str("\">");
                html.push_str(&escaped(piece));
                html.push_str("</span>");
            }
            None => html.push_str(&escaped(piece)),
        }
        before = piece.chars().next_back().unwrap_or(before);
        rest = left;
    }
    html
}

/// How long the string is that begins here; none where nothing ends it.
fn string_length(text: &str, quote: char, over_lines: bool) -> Option<usize> {
    let mut is_escaped = false;
    for (at, letter) in text.char_indices().skip(1) {
        match letter {
            _ if is_escaped => is_escaped = false,
            '\\' if quote == '"' => is_escaped = true,
            '\n' if !over_lines => return None,
            letter if letter == quote => return Some(at + letter.len_utf8()),
            _ => {}
        }
    }
    None
}

/// Text as HTML.
pub(super) fn escaped(text: &str) -> String {
    let mut html = String::with_capacity(text.len() + text.len() / 8);
    for letter in text.chars() {
        match letter {
            '&' => html.push_str("&amp;"),
            '<' => html.push_str("&lt;"),
            '>' => html.push_str("&gt;"),
            '"' => html.push_str("&quot;"),
            letter => html.push(letter),
        }
    }
    html
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_and_strings_are_marked() {
        assert_eq!(
            highlighted("sh", "curl '<a>' # why\nx=a#b it's\n"),
            "curl <span class=\"string\">'&lt;a&gt;'</span> <span class=\"comment\"># why</span>\nx=a#b it's\n"
        );
        assert_eq!(
            highlighted("sh", "curl -d '{\n  \"a\": 1}'"),
            "curl -d <span class=\"string\">'{\n  &quot;a&quot;: 1}'</span>"
        );
        assert_eq!(
            highlighted("json", "{\"a\\\"b\": 1}"),
            "{<span class=\"string\">&quot;a\\&quot;b&quot;</span>: 1}"
        );
        assert_eq!(highlighted("sql", "-- é"), "<span class=\"comment\">-- é</span>");
        assert_eq!(highlighted("text", "# \"a\" <b>"), "# &quot;a&quot; &lt;b&gt;");
        assert_eq!(highlighted("sh", ""), "");
    }
}
