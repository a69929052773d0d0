//! Markdown as HTML: headings with anchors, tables that scroll, code that can be copied.

use std::collections::HashMap;

use pulldown_cmark::{Alignment, CodeBlockKind, Event, HeadingLevel, LinkType, Options, Parser, Tag, TagEnd, html};

use super::highlight::{escaped, highlighted};

/// A page as HTML, and what stands in it.
pub(super) struct Rendered {
    pub(super) html: String,
    pub(super) sections: Vec<Section>,
}

/// A heading and the text up to the next one.
#[derive(Default)]
pub(super) struct Section {
    /// Empty for the page's title.
    pub(super) anchor: String,
    pub(super) heading: String,
    /// 1 for the page's title.
    pub(super) level: u8,
    /// Without marks.
    pub(super) text: String,
}

/// Renders a page; `link` says where a link of it leads.
pub(super) fn render(text: &str, link: impl Fn(&str) -> String) -> Rendered {
    let options = Options::ENABLE_TABLES | Options::ENABLE_STRIKETHROUGH;
    let mut events = Parser::new_ext(text, options).map(|event| with_links(event, &link));
    let mut anchors = Anchors::default();
    let mut sections = vec![Section::default()];
    let mut page = Vec::new();
    while let Some(event) = events.next() {
        match event {
            Event::Start(Tag::Heading { level, .. }) => {
                let is_inside = |event: &Event<'_>| !matches!(event, Event::End(TagEnd::Heading(_)));
                let inside: Vec<Event<'_>> = events.by_ref().take_while(is_inside).collect();
                let heading = plain(&inside);
                let anchor = anchors.of(&heading);
                page.push(Event::Start(Tag::Heading {
                    level,
                    id: Some(anchor.clone().into()),
                    classes: Vec::new(),
                    attrs: Vec::new(),
                }));
                page.extend(inside);
                let is_title = level == HeadingLevel::H1;
                if !is_title {
                    let mark =
                        format!(" <a class=\"anchor\" href=\"#{anchor}\" aria-label=\"Link to this section\">#</a>");
                    page.push(Event::InlineHtml(mark.into()));
                }
                page.push(Event::End(TagEnd::Heading(level)));
                sections.push(Section {
                    anchor: if is_title { String::new() } else { anchor },
                    heading,
                    level: level as u8,
                    text: String::new(),
                });
            }
            Event::Start(Tag::CodeBlock(kind)) => {
                let is_inside = |event: &Event<'_>| !matches!(event, Event::End(TagEnd::CodeBlock));
                let inside: Vec<Event<'_>> = events.by_ref().take_while(is_inside).collect();
                let code = plain(&inside);
                let language = match &kind {
                    CodeBlockKind::Fenced(info) => info.split([' ', ',']).next().unwrap_or_default(),
                    CodeBlockKind::Indented => "",
                };
                append(&mut sections, &code);
                append(&mut sections, " ");
                page.push(Event::Html(code_block(language, &code).into()));
            }
            // Alignments would become inline styles, which the content policy forbids.
            Event::Start(Tag::Table(alignments)) => {
                page.push(Event::Html("<div class=\"scroll\">".into()));
                page.push(Event::Start(Tag::Table(vec![Alignment::None; alignments.len()])));
            }
            Event::End(TagEnd::Table) => {
                page.push(Event::End(TagEnd::Table));
                page.push(Event::Html("</div>\n".into()));
            }
            Event::Html(ref html) | Event::InlineHtml(ref html) if is_comment(html) => {}
            Event::Text(ref text) | Event::Code(ref text) => {
                append(&mut sections, text);
                page.push(event);
            }
            Event::SoftBreak | Event::HardBreak | Event::End(_) => {
                // Marks within a line end, too; words are separated by one space however many there are.
                if !matches!(event, Event::End(TagEnd::Strong | TagEnd::Emphasis | TagEnd::Link)) {
                    append(&mut sections, " ");
                }
                page.push(event);
            }
            other => page.push(other),
        }
    }
    let mut rendered = String::with_capacity(text.len() * 3 / 2);
    html::push_html(&mut rendered, page.into_iter());
    // The text before the title belongs to it.
    let first = sections.remove(0);
    if sections.is_empty() {
        sections.push(first);
    } else {
        sections[0].text.insert_str(0, &first.text);
    }
    for section in &mut sections {
        section.text = section.text.split_whitespace().collect::<Vec<_>>().join(" ");
    }
    Rendered {
        html: rendered,
        sections,
    }
}

/// More text of the section that is read.
fn append(sections: &mut [Section], text: &str) {
    if let Some(section) = sections.last_mut() {
        section.text.push_str(text);
    }
}

/// The text in events.
fn plain(events: &[Event<'_>]) -> String {
    let texts = events.iter().filter_map(|event| match event {
        Event::Text(text) | Event::Code(text) => Some(&**text),
        _ => None,
    });
    texts.collect()
}

/// Remarks for those who edit the file, such as which block a test runs.
fn is_comment(html: &str) -> bool {
    let html = html.trim();
    html.starts_with("<!--") && html.ends_with("-->")
}

fn code_block(language: &str, code: &str) -> String {
    let code = highlighted(language, code);
    let language = escaped(language);
    format!(
        "<div class=\"code\"><button type=\"button\" class=\"copy\" hidden>Copy</button>\
         <pre tabindex=\"0\" data-language=\"{language}\"><code>{code}</code></pre></div>\n"
    )
}

fn with_links<'t>(event: Event<'t>, link: &impl Fn(&str) -> String) -> Event<'t> {
    match event {
        Event::Start(Tag::Link {
            link_type,
            dest_url,
            title,
            id,
        }) if link_type != LinkType::Email => Event::Start(Tag::Link {
            link_type,
            dest_url: link(&dest_url).into(),
            title,
            id,
        }),
        Event::Start(Tag::Image {
            link_type,
            dest_url,
            title,
            id,
        }) => Event::Start(Tag::Image {
            link_type,
            dest_url: link(&dest_url).into(),
            title,
            id,
        }),
        Event::Html(html) => Event::Html(html_with_links(&html, link).into()),
        Event::InlineHtml(html) => Event::InlineHtml(html_with_links(&html, link).into()),
        other => other,
    }
}

/// HTML in a page, such as a picture for light and dark.
fn html_with_links(html: &str, link: &impl Fn(&str) -> String) -> String {
    const ATTRIBUTES: [&str; 3] = ["src=\"", "srcset=\"", "href=\""];
    let mut changed = String::with_capacity(html.len());
    let mut rest = html;
    loop {
        let begins = ATTRIBUTES
            .iter()
            .filter_map(|name| rest.find(name).map(|at| at + name.len()));
        let Some((before, value)) = begins.min().map(|begin| rest.split_at(begin)) else {
            break;
        };
        let Some(end) = value.find('"') else {
            break;
        };
        changed.push_str(before);
        changed.push_str(&link(&value[..end]));
        rest = &value[end..];
    }
    changed.push_str(rest);
    changed
}

/// Anchors as GitHub makes them, so that a link leads to the same place here and there.
#[derive(Default)]
struct Anchors(HashMap<String, usize>);

impl Anchors {
    fn of(&mut self, heading: &str) -> String {
        let letters = heading.chars().flat_map(char::to_lowercase);
        let anchor: String = letters
            .filter_map(|letter| match letter {
                ' ' => Some('-'),
                letter => (letter.is_alphanumeric() || letter == '-' || letter == '_').then_some(letter),
            })
            .collect();
        let count = self.0.entry(anchor.clone()).or_default();
        *count += 1;
        match *count {
            1 => anchor,
            count => format!("{anchor}-{}", count - 1),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rendered(text: &str) -> Rendered {
        render(text, |link| format!("/to/{link}"))
    }

    #[test]
    fn headings_have_the_anchors_of_github() {
        let page = rendered("# A page\n\nintro\n\n## `a.b` & c_d, *e*\n\none\ntwo\n\n## Twice\n\n## Twice\n");
        let anchors: Vec<_> = page.sections.iter().map(|section| section.anchor.as_str()).collect();
        assert_eq!(anchors, ["", "ab--c_d-e", "twice", "twice-1"]);
        assert_eq!(page.sections[0].heading, "A page");
        assert_eq!(page.sections[0].text, "intro");
        assert_eq!((page.sections[1].text.as_str(), page.sections[1].level), ("one two", 2));
        assert!(
            page.html
                .contains("<h2 id=\"ab--c_d-e\"><code>a.b</code> &amp; c_d, <em>e</em> <a class=\"anchor\""),
            "{}",
            page.html
        );
        assert!(page.html.contains("<h1 id=\"a-page\">A page</h1>"), "{}", page.html);
    }

    #[test]
    fn links_and_images_lead_where_they_are_served() {
        let page = rendered(
            "[a](b.md#c) ![d](e.png) <https://x>\n\n<picture>\n<source srcset=\"f\">\n<img src=\"g\">\n</picture>\n",
        );
        for part in [
            "<a href=\"/to/b.md#c\">a</a>",
            "<img src=\"/to/e.png\" alt=\"d\" />",
            "srcset=\"/to/f\"",
            "<img src=\"/to/g\">",
        ] {
            assert!(page.html.contains(part), "{part}: {}", page.html);
        }
    }

    #[test]
    fn what_stands_in_code_is_text() {
        let page = rendered("<!-- run: a -->\n```sh\ncurl \"<a>\"\n```\n\n| a | b |\n|--:|---|\n| `1` | 2 |\n");
        assert!(!page.html.contains("<!--"), "{}", page.html);
        assert!(
            page.html
                .contains("curl <span class=\"string\">&quot;&lt;a&gt;&quot;</span>"),
            "{}",
            page.html
        );
        assert!(
            page.html.contains("<div class=\"scroll\"><table>") && page.html.contains("</table>\n</div>"),
            "{}",
            page.html
        );
        assert!(!page.html.contains("style="), "{}", page.html);
        assert_eq!(page.sections[0].text, "curl \"<a>\" a b 1 2");
    }
}
