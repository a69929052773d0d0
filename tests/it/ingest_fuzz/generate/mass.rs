//! What there is very much of: days, projects, bytes.

use std::sync::Arc;

use bytes::Bytes;

use super::{Draft, Form, Generator, SpecialCase};
use crate::ingest_fuzz::json::quoted;
use crate::ingest_fuzz::operation::{Field, Handle, Moment, Naming, Operation, Verb};
use crate::ingest_fuzz::step::{Key, Mode, Step};
use crate::ingest_fuzz::values;
use crate::ingest_fuzz::wire::{Encoding, Expect, Request, Route};

const DAY: i64 = 86_400_000_000;
/// The maximum number of bytes of a field after decoding.
const FIELD_BYTES: usize = 64 << 20;
/// The maximum number of projects that a body may name.
const PROJECTS: usize = 1_000;
/// The most days on which the runs of a body may start.
const DAYS: i64 = 4_096;
/// The maximum number of bytes of a body as it is sent.
const BODY_BYTES: usize = 24 << 20;

impl Generator {
    /// What is done once. `None` where the server cannot do it yet.
    pub(super) fn once(&mut self, once: SpecialCase) -> Option<Step> {
        let (long, features) = (self.form == Form::Long, self.features);
        match once {
            SpecialCase::ManyDays => Some(self.many_days(if long { DAYS } else { 1_100 })),
            SpecialCase::TooManyDays => Some(self.too_many_days()),
            SpecialCase::ManyProjects if features.names_at_registration => Some(self.many_projects()),
            SpecialCase::TooManyProjects if features.names_at_registration => {
                Some(self.too_many_projects(if long { 100_000 } else { PROJECTS + 1 }))
            }
            SpecialCase::LargeField => Some(self.large_field(if long { BODY_BYTES - (1 << 20) } else { 1 << 20 })),
            SpecialCase::LargestField if features.field_limit => {
                Some(self.repetitive_field(FIELD_BYTES, Expect::Accepted))
            }
            SpecialCase::TooLargeField if features.field_limit => {
                Some(self.repetitive_field(FIELD_BYTES + 1, Expect::Refused(&[413])))
            }
            SpecialCase::Bomb => Some(self.bomb()),
            SpecialCase::ManyProjects
            | SpecialCase::TooManyProjects
            | SpecialCase::LargestField
            | SpecialCase::TooLargeField => None,
        }
    }

    fn mass_draft(&mut self, route: Route, encoding: Encoding) -> Draft {
        let mut draft = self.draft(0, route);
        draft.request.encoding = encoding;
        draft
    }

    /// A post of a new run, at a start.
    fn small_post(&mut self, draft: &Draft, project: Handle, naming: Naming, start: i64) -> Operation {
        let id = values::id(&mut self.dice);
        let mut post = Operation::new(self.step, Verb::Post, id, &draft.request.acceptance);
        post.project = Some(project);
        post.naming = naming;
        post.start = Some(Moment {
            raw: quoted(&towpath_tests::rfc3339(start)),
            micros: start,
        });
        post
    }

    /// Tells the oracle of a run that no other operation continues with.
    fn say_alone(&mut self, draft: &mut Draft, operation: Operation) {
        let run = (draft.request.tenant, operation.id);
        draft.keys.add(Key::Run(run), Mode::Exclusive);
        let operation = Arc::new(operation);
        self.oracle.say(run.0, &operation);
        draft.request.operations.push(operation);
    }

    /// A project of its own, which nothing else goes to.
    fn lone_project(&mut self, draft: &mut Draft, name: String) -> (Handle, Naming) {
        let naming = Naming {
            id: None,
            name: Some(quoted(&name)),
        };
        let handle = self.named(draft, name);
        self.projects[handle].common = false;
        (handle, naming)
    }

    /// One run on each of so many days, in one body.
    fn many_days(&mut self, days: i64) -> Step {
        let mut draft = self.mass_draft(Route::Batch, Encoding::Identity);
        let name = format!("days {}", self.step);
        let (project, naming) = self.lone_project(&mut draft, name);
        for day in 0..days {
            let post = self.small_post(&draft, project, naming.clone(), (day - days / 2) * DAY + day);
            self.say_alone(&mut draft, post);
        }
        self.send(draft)
    }

    /// Runs on more days than those of a body may start on.
    fn too_many_days(&mut self) -> Step {
        let mut draft = self.mass_draft(Route::Batch, Encoding::Identity);
        let dice = &mut self.dice;
        let posts = (0..=DAYS).map(|day| {
            let (id, start) = (values::id(dice), towpath_tests::rfc3339(day * DAY));
            format!("{{\"id\":\"{id}\",\"start_time\":\"{start}\"}}")
        });
        let body = format!("{{\"post\":[{}]}}", posts.collect::<Vec<_>>().join(","));
        refused(&mut draft.request, body.into_bytes(), &[422]);
        self.send(draft)
    }

    /// As many projects as a body may name.
    fn many_projects(&mut self) -> Step {
        let mut draft = self.mass_draft(Route::Batch, Encoding::Zstd);
        for number in 0..PROJECTS {
            let name = format!("one of many {} {number}", self.step);
            let (project, naming) = self.lone_project(&mut draft, name);
            let post = self.small_post(&draft, project, naming, i64::try_from(number).expect("few"));
            self.say_alone(&mut draft, post);
        }
        self.send(draft)
    }

    /// More projects than a body may name.
    fn too_many_projects(&mut self, count: usize) -> Step {
        let mut draft = self.mass_draft(Route::Batch, Encoding::Identity);
        let (step, dice) = (self.step, &mut self.dice);
        let posts = (0..count).map(|number| {
            let id = values::id(dice);
            format!("{{\"id\":\"{id}\",\"session_name\":\"too many {step} {number}\"}}")
        });
        let body = format!("{{\"post\":[{}]}}", posts.collect::<Vec<_>>().join(","));
        refused(&mut draft.request, body.into_bytes(), &[400]);
        self.send(draft)
    }

    /// A field of so many bytes that do not pack.
    fn large_field(&mut self, bytes: usize) -> Step {
        let raw = format!("{{\"text\":\"{}\"}}", values::noise(&mut self.dice, bytes));
        self.one_field(raw, Encoding::Identity, Expect::Accepted)
    }

    /// A field of exactly so many bytes that pack well.
    fn repetitive_field(&mut self, bytes: usize, expect: Expect) -> Step {
        // Enough of it does not pack, so that the body is not taken for a bomb.
        let noise = values::noise(&mut self.dice, 2 << 20);
        let around = "{\"text\":\"\"}".len() + noise.len();
        let raw = format!("{{\"text\":\"{noise}{}\"}}", "x".repeat(bytes - around));
        self.one_field(raw, Encoding::Zstd, expect)
    }

    fn one_field(&mut self, raw: String, encoding: Encoding, expect: Expect) -> Step {
        let mut draft = self.mass_draft(Route::Multipart, encoding);
        let name = format!("large {}", self.step);
        if expect == Expect::Accepted {
            let (project, naming) = self.lone_project(&mut draft, name);
            let mut post = self.small_post(&draft, project, naming, DAY);
            post.fields.insert(Field::Inputs, raw);
            self.say_alone(&mut draft, post);
            return self.send(draft);
        }
        let naming = Naming {
            id: None,
            name: Some(quoted(&name)),
        };
        let mut post = self.small_post(&draft, 0, naming, DAY);
        post.fields.insert(Field::Inputs, raw);
        draft.request.operations.push(Arc::new(post));
        draft.request.expect = expect;
        self.send(draft)
    }

    /// A small body that unpacks into more than is accepted.
    fn bomb(&mut self) -> Step {
        let mut draft = self.mass_draft(Route::Run, Encoding::Zstd);
        refused(&mut draft.request, vec![b' '; 300 << 20], &[413]);
        self.send(draft)
    }
}

/// Turns a request into one that is refused, with this body.
pub(super) fn refused(request: &mut Request, body: Vec<u8>, statuses: &'static [u16]) {
    request.operations.clear();
    request.body = Some(Bytes::from(body));
    request.expect = Expect::Refused(statuses);
}
