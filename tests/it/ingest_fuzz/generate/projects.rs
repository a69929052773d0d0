//! Projects: how operations name them, and what becomes of them.

use super::{Draft, Generator, Project};
use crate::ingest_fuzz::json::{Json, quoted};
use crate::ingest_fuzz::operation::{Handle, Naming, Tenant, Verb};
use crate::ingest_fuzz::step::{Key, Keys, Mode, Step, Work};
use crate::ingest_fuzz::values;

impl Generator {
    /// The project that a naming means, made if there is none of its name. `None` where it names none.
    pub(super) fn address(&mut self, draft: &mut Draft, naming: &Naming, verb: Verb) -> Option<Handle> {
        if let Some(handle) = naming.id {
            draft.keys.add(Key::Project(handle), Mode::Shared);
            return Some(handle);
        }
        let said = naming.name.as_deref().map(|raw| Json::parse(raw).expect("JSON"));
        let name = match said.as_ref().and_then(Json::as_text).filter(|name| !name.is_empty()) {
            Some(name) => name.to_owned(),
            None if verb == Verb::Post => "default".to_owned(),
            None => return None,
        };
        Some(self.named(draft, name))
    }

    /// The project of that name, made if there is none.
    pub(super) fn named(&mut self, draft: &mut Draft, name: String) -> Handle {
        let tenant = draft.request.tenant;
        draft.keys.add(Key::Name(tenant, name.clone()), Mode::Shared);
        if let Some(handle) = self.workspaces[tenant].names.get(&name) {
            draft.keys.add(Key::Project(*handle), Mode::Shared);
            return *handle;
        }
        let handle = self.new_project(tenant, &name);
        // A caller that comes next must find it made.
        draft.keys.add(Key::Project(handle), Mode::Exclusive);
        draft.request.makes.push((handle, name));
        handle
    }

    pub(super) fn new_project(&mut self, tenant: Tenant, name: &str) -> Handle {
        let handle = self.projects.len();
        self.projects.push(Project {
            tenant,
            name: name.to_owned(),
            deleted: false,
            common: true,
        });
        self.workspaces[tenant].names.insert(name.to_owned(), handle);
        handle
    }

    /// A name that no project has.
    pub(super) fn new_name(&mut self) -> String {
        let number = self.step * 10 + self.dice.index(10);
        match self.dice.below(12) {
            0 => format!("été – ✓ {number}"),
            1 => format!("cut \u{fffd} {number}"),
            2 => format!("100%_\\ {number}"),
            3 => format!("{number} {}", "x".repeat(400)),
            4 => format!("'\"; -- {number}"),
            _ => format!("project {number}"),
        }
    }

    /// The projects that operations go to by themselves.
    pub(super) fn common_projects(&self, tenant: Tenant) -> Vec<Handle> {
        let there = self.workspaces[tenant].names.values().copied();
        there.filter(|handle| self.projects[*handle].common).collect()
    }

    pub(super) fn common_project(&mut self, tenant: Tenant) -> Option<Handle> {
        let there = self.common_projects(tenant);
        (!there.is_empty()).then(|| *self.dice.pick(&there))
    }

    /// How an operation names its project.
    pub(super) fn naming(&mut self, draft: &Draft) -> Naming {
        let common = self.common_projects(draft.request.tenant);
        let choice = self.dice.below(20);
        let new = if common.len() < 5 { 3 } else { 60 };
        if common.is_empty() || self.dice.one_in(new) {
            let name = self.new_name();
            return Naming {
                id: None,
                name: Some(self.written(&name)),
            };
        }
        let handle = *self.dice.pick(&common);
        // No one can know the id of one that this very request makes.
        let made = draft.request.makes.iter().any(|(made, _)| *made == handle);
        match choice {
            0 => Naming::default(),
            1 => Naming {
                id: None,
                name: Some((*self.dice.pick(&["null", "\"\""])).to_owned()),
            },
            2..7 if !made => Naming {
                id: Some(handle),
                // A name beside the id says nothing, and makes nothing.
                name: self.dice.one_in(4).then(|| "\"somebody else's\"".to_owned()),
            },
            _ => {
                let name = self.projects[handle].name.clone();
                Naming {
                    id: None,
                    name: Some(self.written(&name)),
                }
            }
        }
    }

    /// A name as JSON; U+FFFD as half of a surrogate pair now and then, which means the same.
    pub(super) fn written(&mut self, name: &str) -> String {
        let half = *self.dice.pick(&["\u{fffd}", "\\ud83d", "\\uDE00", "\\ufffd"]);
        quoted(name).replace('\u{fffd}', half)
    }

    pub(super) fn administer(&mut self) -> Option<Step> {
        let tenant = self.tenant();
        let changes = self.features.names_at_registration;
        match self.dice.below(10) {
            0..2 => Some(self.make(tenant)),
            2..6 if changes => self.rename(tenant),
            6.. if changes => self.delete(tenant),
            _ => None,
        }
    }

    pub(super) fn make(&mut self, tenant: Tenant) -> Step {
        let name = self.new_name();
        let project = self.new_project(tenant, &name);
        let mut keys = Keys::default();
        keys.add(Key::Name(tenant, name.clone()), Mode::Exclusive);
        keys.add(Key::Project(project), Mode::Exclusive);
        let id = values::id(&mut self.dice);
        let work = Work::Make {
            tenant,
            project,
            name,
            id,
        };
        self.finish(keys, work)
    }

    pub(super) fn rename(&mut self, tenant: Tenant) -> Option<Step> {
        let project = self.common_project(tenant)?;
        let old = self.projects[project].name.clone();
        let other = self.common_project(tenant).filter(|other| *other != project);
        let mut keys = Keys::default();
        let taken = other.filter(|_| self.dice.one_in(5));
        let name = match taken {
            Some(other) => self.projects[other].name.clone(),
            None => self.new_name(),
        };
        if let Some(other) = taken {
            keys.add(Key::Project(other), Mode::Shared);
            keys.add(Key::Name(tenant, name.clone()), Mode::Shared);
            keys.add(Key::Project(project), Mode::Shared);
        } else {
            keys.add(Key::Project(project), Mode::Exclusive);
            keys.add(Key::Name(tenant, old.clone()), Mode::Exclusive);
            keys.add(Key::Name(tenant, name.clone()), Mode::Exclusive);
            let names = &mut self.workspaces[tenant].names;
            names.remove(&old);
            names.insert(name.clone(), project);
            self.projects[project].name.clone_from(&name);
        }
        let work = Work::Rename {
            tenant,
            project,
            name,
            taken: taken.is_some(),
        };
        Some(self.finish(keys, work))
    }

    pub(super) fn delete(&mut self, tenant: Tenant) -> Option<Step> {
        if self.common_projects(tenant).len() < 4 {
            return None;
        }
        let project = self.common_project(tenant)?;
        let name = self.projects[project].name.clone();
        let mut keys = Keys::default();
        keys.add(Key::Project(project), Mode::Exclusive);
        keys.add(Key::Name(tenant, name.clone()), Mode::Exclusive);
        self.oracle.delete_project(project);
        self.workspaces[tenant].names.remove(&name);
        self.projects[project].deleted = true;
        Some(self.finish(keys, Work::Delete { tenant, project }))
    }

    // ---- reading ----
}
