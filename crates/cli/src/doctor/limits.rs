//! Whether the rules of rate limits can be used.

use towpath_api::limits::Table;

use super::{Findings, Verdict};
use crate::config::Settings;

const CHECK: &str = "limits";

/// Reads them as the server will.
pub(super) fn look(settings: &Settings, findings: &mut Findings) {
    let rules = settings.limits.rules.as_str();
    if rules == "off" {
        return;
    }
    match Table::load(rules) {
        Ok(_) => findings.add(CHECK, Verdict::Ok, format!("the rules of {rules} can be used")),
        Err(why) => findings.add(CHECK, Verdict::Failed, format!("limits.rules: {rules}: {why}")),
    }
}
