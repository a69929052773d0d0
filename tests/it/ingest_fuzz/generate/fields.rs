//! What operations and feedback say.

use std::sync::Arc;

use towpath_tests::{Random, rfc3339};
use uuid::Uuid;

use super::{DAYS, Draft, FIRST_DAY, Generator};
use crate::ingest_fuzz::json::quoted;
use crate::ingest_fuzz::operation::{Field, Link, Operation, Order, Tenant, Verb};
use crate::ingest_fuzz::{Features, values};

/// Levels that the fields of a body may have: three are taken by what is around them.
const DEEPEST: usize = 124;

impl Generator {
    /// A post: of a new run, of one that was patched before, or of one that was posted before.
    pub(super) fn post(&mut self, draft: &mut Draft) -> Operation {
        let tenant = draft.request.tenant;
        let id = match self.dice.below(20) {
            0..3 => self.awaited(tenant),
            3..5 => self.known(tenant),
            5..7 => {
                if let Some(again) = self.again(draft) {
                    return again;
                }
                None
            }
            _ => None,
        };
        let id = id.unwrap_or_else(|| values::id(&mut self.dice));
        let mut post = self.operation(draft, Verb::Post, id);
        post.naming = self.naming(draft);
        let start = self.start();
        match self.dice.below(20) {
            0..9 => {
                post.order = Some(self.order(vec![Link { start, id }]));
                post.start = Some(values::moment(&mut self.dice, start));
            }
            9..14 => {
                post.order = Some(self.child_order(tenant, Link { start, id }));
                post.start = Some(values::moment(&mut self.dice, start));
            }
            14..17 => post.start = Some(values::moment(&mut self.dice, start)),
            17 => {}
            18 => {
                // They disagree.
                post.order = Some(self.order(vec![Link { start, id }]));
                let other = self.start();
                post.start = Some(values::moment(&mut self.dice, other));
            }
            _ => post.order = Some(self.order(vec![Link { start, id }])),
        }
        self.tree_fields(tenant, &mut post);
        self.fill(&mut post, start, 2);
        post.project = self.address(draft, &post.naming, Verb::Post);
        post
    }

    /// A patch, mostly of a run that was spoken of before.
    pub(super) fn patch(&mut self, draft: &mut Draft) -> Operation {
        let tenant = draft.request.tenant;
        let known = if self.dice.one_in(6) { None } else { self.known(tenant) };
        let id = known.unwrap_or_else(|| values::id(&mut self.dice));
        if known.is_none() {
            self.workspaces[tenant].awaited.push(id);
        }
        let mut patch = self.operation(draft, Verb::Patch, id);
        if self.dice.one_in(2) {
            patch.naming = self.naming(draft);
        }
        let start = self.start();
        let there = self.oracle.whereabouts((tenant, id));
        match self.dice.below(10) {
            0 | 1 => patch.order = Some(self.order(vec![Link { start, id }])),
            2 => patch.order = Some(self.child_order(tenant, Link { start, id })),
            // As the official clients do it: the same again.
            3 | 4 => patch.order = there.and_then(|row| row.order.clone()),
            _ => {}
        }
        if self.dice.one_in(8) {
            patch.start = Some(values::moment(&mut self.dice, start));
        }
        if self.dice.one_in(4) {
            self.tree_fields(tenant, &mut patch);
        }
        self.fill(&mut patch, start, 3);
        patch.project = self.address(draft, &patch.naming, Verb::Patch);
        patch
    }

    /// A post of a run that was posted before, word by word: its answer was lost.
    fn again(&mut self, draft: &mut Draft) -> Option<Operation> {
        let tenant = draft.request.tenant;
        let id = self.known(tenant)?;
        let posted = self.oracle.first_post((tenant, id))?;
        // A span says in other words what is kept of it.
        let gone = posted.naming.id.is_some_and(|handle| self.projects[handle].deleted);
        if gone || !posted.verbatim {
            return None;
        }
        let mut again = Operation {
            step: self.step,
            acceptance: Arc::clone(&draft.request.acceptance),
            ..Operation::clone(&posted)
        };
        again.project = self.address(draft, &again.naming, Verb::Post);
        Some(again)
    }

    fn operation(&mut self, draft: &Draft, verb: Verb, id: Uuid) -> Operation {
        let mut operation = Operation::new(self.step, verb, id, &draft.request.acceptance);
        operation.id_text = Some(values::id_text(&mut self.dice, id));
        operation
    }

    fn awaited(&mut self, tenant: Tenant) -> Option<Uuid> {
        let awaited = &self.workspaces[tenant].awaited;
        (!awaited.is_empty()).then(|| *self.dice.pick(awaited))
    }

    pub(super) fn start(&mut self) -> i64 {
        if self.dice.one_in(60) {
            values::odd_start(&mut self.dice)
        } else {
            values::start(&mut self.dice, FIRST_DAY, DAYS)
        }
    }

    fn order(&mut self, links: Vec<Link>) -> Order {
        values::order(&mut self.dice, links)
    }

    fn child_order(&mut self, tenant: Tenant, own: Link) -> Order {
        let trees = &self.workspaces[tenant].trees;
        let mut links = if trees.is_empty() {
            Vec::new()
        } else {
            self.dice.pick(trees).clone()
        };
        if self.dice.one_in(15) {
            // Its own ancestor.
            links.push(own);
        }
        links.push(own);
        values::order(&mut self.dice, links)
    }

    /// Ids of the tree. If there is a `dotted_order`, they say nothing.
    fn tree_fields(&mut self, tenant: Tenant, operation: &mut Operation) {
        let id = operation.id;
        let other = self.known(tenant).unwrap_or(id);
        let links = operation.order.as_ref().map(|order| order.links.clone());
        let (root, parent) = match &links {
            Some(links) => (links[0].id, links.len().checked_sub(2).map(|above| links[above].id)),
            None => (other, Some(other)),
        };
        if !self.dice.one_in(3) {
            let root = *self.dice.pick(&[root, root, root, other, id]);
            let root = values::id_text(&mut self.dice, root);
            operation.fields.insert(Field::TraceId, quoted(&root));
        }
        if self.dice.one_in(2) {
            // A run may say that it is below itself, or below one that is below it.
            let parent = match self.dice.below(8) {
                0 => Some(id),
                1 => Some(other),
                _ => parent.filter(|_| links.is_some() || self.dice.one_in(3)),
            };
            let raw = parent.map_or_else(|| "null".to_owned(), |parent| quoted(&parent.to_string()));
            operation.fields.insert(Field::Parent, raw);
        }
    }

    /// Fields that say something of the run itself: each with a chance of one in `rare`.
    fn fill(&mut self, operation: &mut Operation, start: i64, rare: u64) {
        let features = self.features;
        let dice = &mut self.dice;
        let mut set = |dice: &mut Random, field: Field, one_in: u64, raw: fn(&mut Random, Features, i64) -> String| {
            if dice.one_in(one_in) {
                let raw = if dice.one_in(20) {
                    "null".to_owned()
                } else {
                    raw(dice, features, start)
                };
                operation.fields.insert(field, raw);
            }
        };
        set(dice, Field::Name, rare, |dice, _, _| values::text(dice));
        set(dice, Field::RunType, rare, |dice, _, _| {
            (*dice.pick(&["\"chain\"", "\"llm\"", "\"tool\"", "\"\"", "\"Ünknown\""])).to_owned()
        });
        set(dice, Field::Inputs, rare, |dice, _, _| values::inputs(dice, DEEPEST));
        set(dice, Field::Outputs, rare, |dice, features, _| {
            values::outputs(dice, features)
        });
        set(dice, Field::Extra, rare, |dice, features, _| {
            values::extra(dice, features)
        });
        set(dice, Field::Events, rare * 3, |dice, _, start| {
            values::events(dice, start)
        });
        set(dice, Field::Tags, rare * 2, |dice, _, _| values::tags(dice));
        set(dice, Field::Serialized, rare * 6, |dice, _, _| values::any(dice, 2));
        set(dice, Field::Status, rare * 4, |dice, features, _| {
            let statuses = [
                "\"pending\"",
                "\"success\"",
                "\"error\"",
                "\"Completed\"",
                "\"OK\"",
                "\"failure\"",
                "\"running\"",
                "\"\\ud800\"",
                "\"\"",
            ];
            let known = if features.statuses { statuses.len() } else { 3 };
            (*dice.pick(&statuses[..known])).to_owned()
        });
        set(dice, Field::Example, rare * 8, |dice, _, _| {
            quoted(&values::id(dice).to_string())
        });
        set(dice, Field::Error, rare * 4, |dice, _, _| match dice.below(3) {
            0 => "\"\"".to_owned(),
            1 => values::text(dice),
            _ => values::any(dice, 1),
        });
        if dice.one_in(3) {
            let end = start.saturating_add(i64::try_from(dice.below(60_000_000)).expect("a minute"));
            operation.end = Some(values::moment(dice, end.min(values::TIMES.1)));
        }
        if dice.one_in(4) {
            let unknown = [
                ("\"child_runs\"", "[{\"id\": 1e999}]".to_owned()),
                ("\"trace_tier\"", "\"shortlived\"".to_owned()),
                ("\"\"", values::any(dice, 1)),
                ("\"tenant_id\"", quoted(&values::id(dice).to_string())),
                ("\"ünknown\"", values::any(dice, 2)),
                ("\"in\\u0070\"", quoted(&rfc3339(0))),
            ];
            let (name, raw) = dice.pick(&unknown).clone();
            operation.unknown.push((name.to_owned(), raw));
        }
    }
}

/// The members of a piece of feedback.
pub fn judgement(dice: &mut Random, features: Features) -> Vec<(&'static str, String)> {
    let mut members = Vec::new();
    if !dice.one_in(4) {
        let plain = ["1", "0", "0.5", "-3", "true", "false", "null"];
        members.push(("score", (*dice.pick(&plain)).to_owned()));
    }
    if dice.one_in(3) {
        let text = if features.odd_json {
            values::text(dice)
        } else {
            values::plain_text(dice)
        };
        members.push((
            "value",
            (*dice.pick(&[text.as_str(), "null", "3", "{\"a\":[1]}"])).to_owned(),
        ));
    }
    if dice.one_in(2) {
        let comment = if features.odd_json {
            values::text(dice)
        } else {
            values::plain_text(dice)
        };
        members.push(("comment", comment));
    }
    if dice.one_in(4) {
        members.push((
            "feedback_source",
            "{\"type\":\"model\",\"metadata\":{\"a\":1}}".to_owned(),
        ));
    }
    if dice.one_in(6) && features.odd_json {
        members.push(("correction", values::any(dice, 3)));
    }
    members
}
