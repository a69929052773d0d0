//! Listing namespaces.

use std::collections::BTreeSet;
use std::ops::ControlFlow;

use towpath_domain::TenantId;
use towpath_domain::agent::namespace::{Namespace, split};

use super::alive;
use crate::query::{Arg, Query};
use crate::{Result, Tx};

/// Namespaces that contain items: below `prefix`, ending in `suffix` (`*` stands for any one label), cut to `max_depth`
/// labels, sorted.
///
/// They are read one by one, in index order if the database has an index for it, so memory use does not grow with
/// skipped ones.
pub async fn namespaces(
    tx: &mut Tx<'_>,
    tenant: TenantId,
    prefix: &Namespace,
    suffix: &Namespace,
    max_depth: Option<usize>,
    limit: usize,
    offset: usize,
) -> Result<Vec<Vec<String>>> {
    if limit == 0 {
        return Ok(Vec::new());
    }
    // Where the database can tell which are wanted, it needs to find no more than are asked for.
    let exact = max_depth.is_none() && !has_wildcard(prefix) && !has_wildcard(suffix);
    let enough = i64::try_from(offset.saturating_add(limit)).ok().filter(|_| exact);
    for most in enough.map(Some).into_iter().chain([None]) {
        let mut query = sorted(tx, tenant, prefix, suffix);
        if let Some(most) = most {
            query.limit(most);
        }
        let mut page = Page::new(max_depth, limit, offset);
        let mut rows = 0_i64;
        let take = |(stored, whole): (String, Option<String>)| {
            rows += 1;
            page.take(&stored, whole.as_deref(), |labels| is_wanted(labels, prefix, suffix))
        };
        query.each(tx, take).await?;
        // Rows of long names may stand for the same namespace. Then those that were found are too few.
        if page.is_full() || most.is_none_or(|most| rows < most) {
            return Ok(page.found);
        }
    }
    Ok(Vec::new())
}

fn has_wildcard(part: &Namespace) -> bool {
    part.labels().iter().any(|label| label == "*")
}

fn is_wanted(labels: &[String], prefix: &Namespace, suffix: &Namespace) -> bool {
    matches(labels.iter(), prefix.labels().iter()) && matches(labels.iter().rev(), suffix.labels().iter().rev())
}

fn matches<'a>(labels: impl Iterator<Item = &'a String>, wanted: impl Iterator<Item = &'a String>) -> bool {
    let mut labels = labels;
    let mut wanted = wanted;
    wanted.all(|want| labels.next().is_some_and(|label| want == "*" || want == label))
}

/// Reads candidate namespaces: those that match the prefix up to its first wildcard, and the suffix if that has none. A
/// row has the index form and, if that was cut, the whole name.
fn sorted(tx: &Tx<'_>, tenant: TenantId, prefix: &Namespace, suffix: &Namespace) -> Query {
    let known = prefix.labels().iter().take_while(|label| *label != "*");
    let known: Vec<String> = known.cloned().collect();
    let text = "SELECT namespace, max(whole_namespace) AS whole FROM store_item";
    let mut query = alive(tx, text, tenant, &known);
    if !suffix.labels().is_empty() && !has_wildcard(suffix) {
        let suffix = suffix.dotted();
        let end = format!(".{suffix}");
        query.push(" AND (coalesce(whole_namespace, namespace) = ");
        query.bind(Arg::Text(suffix));
        // The end of a text, in characters. A shorter namespace yields a different text.
        query.push(
            " OR substr(coalesce(whole_namespace, namespace), length(coalesce(whole_namespace, namespace)) - length(",
        );
        query.bind(Arg::Text(end.clone())).push(") + 1) = ");
        query.bind(Arg::Text(end)).push(")");
    }
    // On PostgreSQL texts compare by their locale, so it asks for the bytes.
    query.push(sql!(tx,
        sqlite: " GROUP BY namespace ORDER BY namespace",
        postgres: " GROUP BY namespace ORDER BY namespace COLLATE \"C\""));
    query
}

/// What is answered, while rows are read.
struct Page {
    depth: usize,
    limit: usize,
    skipped: usize,
    found: Vec<Vec<String>>,
    /// Names that were seen and may come again: `a`, cut from `a.b`, where `a-c` sorts between `a` and `a.b`.
    open: Vec<String>,
    /// How the last row begins, where its name was cut for the index. What follows there is a hash.
    begin: String,
    /// Names longer than `begin` that were seen. Rows with the same beginning are adjacent.
    long: BTreeSet<String>,
}

impl Page {
    const fn new(max_depth: Option<usize>, limit: usize, offset: usize) -> Self {
        Self {
            depth: match max_depth {
                Some(depth) => depth,
                None => usize::MAX,
            },
            limit,
            skipped: offset,
            found: Vec::new(),
            open: Vec::new(),
            begin: String::new(),
            long: BTreeSet::new(),
        }
    }

    const fn is_full(&self) -> bool {
        self.found.len() >= self.limit
    }

    fn take(&mut self, stored: &str, whole: Option<&str>, is_wanted: impl Fn(&[String]) -> bool) -> ControlFlow<()> {
        self.open.retain(|name| may_come_again(name, stored));
        let begin = whole.and_then(|_| stored.split("..").next()).unwrap_or_default();
        if begin != self.begin {
            begin.clone_into(&mut self.begin);
            self.long.clear();
        }
        let mut labels = split(whole.unwrap_or(stored));
        if is_wanted(&labels) {
            labels.truncate(self.depth);
            self.answer(labels);
        }
        if self.is_full() {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        }
    }

    fn answer(&mut self, labels: Vec<String>) {
        let name = labels.join(".");
        if self.open.contains(&name) || self.long.contains(&name) {
            return;
        }
        if !self.begin.is_empty() && name.len() > self.begin.len() {
            self.long.insert(name);
        } else {
            self.open.push(name);
        }
        if self.skipped > 0 {
            self.skipped -= 1;
        } else {
            self.found.push(labels);
        }
    }
}

/// Whether the namespace `name`, or one below it, may come once `stored` has come.
fn may_come_again(name: &str, stored: &str) -> bool {
    stored
        .strip_prefix(name)
        .is_some_and(|rest| rest.bytes().next().is_none_or(|next| next <= b'.'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listed(rows: &[(&str, Option<&str>)], depth: Option<usize>) -> Vec<String> {
        let mut page = Page::new(depth, usize::MAX, 0);
        for (stored, whole) in rows {
            assert!(page.take(stored, *whole, |_| true).is_continue());
        }
        page.found.into_iter().map(|labels| labels.join(".")).collect()
    }

    #[test]
    fn each_name_is_answered_once() {
        let rows = [
            ("a", None),
            ("a-b", None),
            ("a-b.c", None),
            ("a.c", None),
            ("b.c", None),
            ("b/", None),
        ];
        assert_eq!(listed(&rows, Some(1)), ["a", "a-b", "b", "b/"]);
        assert_eq!(listed(&rows, None).len(), 6);
        // A long key, and names that begin alike.
        let rows = [
            ("a", None),
            ("a-b", None),
            ("a..01", Some("a")),
            ("a..02", Some("a")),
            ("a.b", None),
            ("c.d..03", Some("c.dd.e")),
            ("c.d..04", Some("c.de")),
            ("c.d..05", Some("c.dd.e")),
            ("c.d..06", Some("c.dd.f")),
        ];
        assert_eq!(listed(&rows, None), ["a", "a-b", "a.b", "c.dd.e", "c.de", "c.dd.f"]);
        assert_eq!(listed(&rows, Some(2)), ["a", "a-b", "a.b", "c.dd", "c.de"]);
        assert_eq!(listed(&rows, Some(1)), ["a", "a-b", "c"]);
    }
}
