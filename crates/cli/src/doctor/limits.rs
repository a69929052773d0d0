//! Validates the rules of rate limits.

use towpath_api::limits::Table;

use super::findings::{Findings, Verdict};
use crate::config::Settings;

const CHECK: &str = "limits";

pub(super) fn check(settings: &Settings, findings: &mut Findings) {
    let rules = settings.limits.rules.as_str();
    if rules == "off" {
        return;
    }
    match Table::load(rules) {
        Ok(_) => findings.add(CHECK, Verdict::Ok, format!("the rules of {rules} are valid")),
        Err(why) => findings.add(CHECK, Verdict::Failed, format!("limits.rules: {rules}: {why}")),
    }
}
