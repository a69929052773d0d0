//! After a change of prices, all costs of a workspace are those of the new prices, wherever the work was interrupted.

use std::time::Duration;

use arrow::array::AsArray;
use arrow::datatypes::Decimal128Type;
use towpath_domain::export::ExportStatus;
use towpath_domain::{ModelPriceId, TenantId};
use towpath_store::model_prices::{self, NewModelPrice};
use towpath_traces::accept::Route;
use towpath_workflows::reprice_days;
use uuid::Uuid;

use crate::fixture::{Database, PROJECT, WorkflowFixture, on_both_databases, time};

const OPEN_JOBS: &str = "SELECT count(*) FROM job WHERE finished_at IS NULL AND kind <> 'sweep_traces'";
const OUTDATED: &str = "SELECT count(*) FROM segment s JOIN model_price_version v ON v.tenant_id = s.tenant_id
                        WHERE s.state = 'live' AND s.price_version < v.version";
const WRITING: &str = "SELECT (SELECT count(*) FROM segment WHERE state = 'writing')
                            + (SELECT count(*) FROM run_index WHERE state = 'writing')";
const DAYS: [&str; 3] = ["2026-03-01", "2026-03-02", "2026-03-03"];

on_both_databases! {
    new_prices_apply_to_all_days,
    killed_anywhere_all_costs_are_of_one_price_in_the_end,
    a_flush_that_knew_the_earlier_prices_is_found_by_the_sweep,
    a_workspace_without_a_change_is_left_alone,
}

fn price(cost: &str) -> NewModelPrice {
    NewModelPrice {
        name: "barge".to_owned(),
        provider: None,
        match_pattern: "^barge$".to_owned(),
        match_path: None,
        start_time: None,
        prompt_cost: cost.to_owned(),
        completion_cost: "0".to_owned(),
        prompt_cost_details: "{}".to_owned(),
        completion_cost_details: "{}".to_owned(),
    }
}

impl WorkflowFixture {
    /// Sends a call of the model for each day, with 10 tokens and a cost for every third one, and flushes them.
    async fn send_calls(&self, round: u128) {
        let mut posts = Vec::new();
        for (at, day) in DAYS.iter().enumerate() {
            let id = Uuid::from_u128(0x0194_fdc2_0000_7000_8000_0000_0000_0000 + round * 10 + at as u128);
            posts.push(format!(
                r#"{{"id":"{id}","trace_id":"{id}","name":"call","run_type":"llm","session_name":"{PROJECT}",
                    "dotted_order":"{}T1000000000{round:02}Z{id}","start_time":"{day}T10:00:00.0000{round:02}Z",
                    "extra":{{"metadata":{{"ls_model_name":"barge"}}}},
                    "outputs":{{"usage_metadata":{{"input_tokens":10,"output_tokens":1}}}}}}"#,
                day.replace('-', ""),
            ));
        }
        let body = format!(r#"{{"post":[{}],"patch":[]}}"#, posts.join(","));
        self.send_json(Route::Batch, body).await;
        self.wait(Duration::from_secs(3)).await;
        self.drive().await;
    }

    /// Adds or replaces the only price.
    async fn set_price(&self, id: Option<ModelPriceId>, cost: &str) -> ModelPriceId {
        let set = self.store().write(async |tx| {
            reprice_days::ensure(tx, self.tenant).await?;
            match id {
                Some(id) => model_prices::update(tx, self.tenant, id, &price(cost)).await,
                None => model_prices::create(tx, self.tenant, &price(cost)).await,
            }
        });
        set.await.unwrap().id
    }

    /// Performs everything but sweeps.
    async fn settle(&self) {
        self.drive().await;
        for _ in 0..100 {
            if self.count(OPEN_JOBS).await == 0 {
                return;
            }
            self.wait(Duration::from_secs(31)).await;
            self.drive().await;
        }
        panic!("jobs are left: {}", self.jobs().await);
    }

    /// The total costs of all exported rows, each once.
    async fn costs(&self) -> Vec<i128> {
        let export = self
            .export_as(|asked| (asked.start_time, asked.end_time) = (time("2026-03-01"), Some(time("2026-03-04"))))
            .await;
        self.settle().await;
        assert_eq!(self.read(export).await.status, ExportStatus::Completed);
        let rows = self.rows(export);
        let costs = rows.column_by_name("total_cost").unwrap();
        let mut costs: Vec<i128> = costs.as_primitive::<Decimal128Type>().iter().flatten().collect();
        costs.sort_unstable();
        costs.dedup();
        costs
    }
}

async fn new_prices_apply_to_all_days(on: Database) {
    let fixture = WorkflowFixture::empty_on(&on, 3).await;
    fixture.send_calls(0).await;
    assert_eq!(fixture.costs().await, [] as [i128; 0], "no price is known");
    let id = fixture.set_price(None, "0.000001").await;
    assert!(fixture.count(OUTDATED).await > 0);
    fixture.settle().await;
    assert_eq!(fixture.count(OUTDATED).await, 0);
    assert_eq!(fixture.costs().await, [100_000]);
    fixture.send_calls(1).await;
    fixture.set_price(Some(id), "0.0000025").await;
    fixture.send_calls(2).await;
    fixture.settle().await;
    assert_eq!(fixture.count(OUTDATED).await, 0);
    assert_eq!(fixture.costs().await, [250_000]);
    // A later change finds nothing of the earlier one in the way.
    let gone = fixture.store().write(async |tx| {
        reprice_days::ensure(tx, fixture.tenant).await?;
        model_prices::delete(tx, fixture.tenant, id).await
    });
    gone.await.unwrap();
    fixture.settle().await;
    assert_eq!(fixture.costs().await, [] as [i128; 0]);
    fixture.assert_tidy().await;
}

async fn killed_anywhere_all_costs_are_of_one_price_in_the_end(on: Database) {
    let fixture = WorkflowFixture::empty_on(&on, 3).await;
    fixture.send_calls(0).await;
    let id = fixture.set_price(None, "0.000001").await;
    fixture.settle().await;
    let mut killed = 0;
    let mut price = 1_i128;
    for kind in ["reprice_days", "compact_day"] {
        for polls in (1..2000).step_by(on.stride()) {
            price += 1;
            fixture.set_price(Some(id), &format!("0.0000{price:06}")).await;
            let job = fixture.until(kind).await;
            let dropped = fixture.perform_for(job, polls).await;
            fixture.boot().await;
            fixture.settle().await;
            assert_eq!(fixture.count(OUTDATED).await, 0, "{kind} killed after {polls} polls");
            assert_eq!(fixture.count(WRITING).await, 0, "{kind} killed after {polls} polls");
            if !dropped {
                break;
            }
            killed += 1;
        }
        // 10 tokens, in units of 10⁻¹⁰.
        assert_eq!(fixture.costs().await, [price * 10]);
    }
    assert!(killed > 4, "{killed}");
    fixture.assert_tidy().await;
}

async fn a_flush_that_knew_the_earlier_prices_is_found_by_the_sweep(on: Database) {
    let fixture = WorkflowFixture::empty_on(&on, 3).await;
    fixture.send_calls(0).await;
    // As if the segments were published after the job of the change had ended.
    let changed = fixture
        .store()
        .write(async |tx| model_prices::create(tx, fixture.tenant, &price("0.000001")).await);
    changed.await.unwrap();
    assert!(fixture.count(OUTDATED).await > 0);
    fixture.sweep().await;
    fixture.settle().await;
    assert_eq!(fixture.count(OUTDATED).await, 0);
    assert_eq!(fixture.costs().await, [100_000]);
}

async fn a_workspace_without_a_change_is_left_alone(on: Database) {
    let fixture = WorkflowFixture::empty_on(&on, 3).await;
    fixture.send_calls(0).await;
    let other = TenantId::new();
    let changed = fixture.store().write(async |tx| {
        reprice_days::ensure(tx, other).await?;
        model_prices::create(tx, other, &price("0.000001")).await
    });
    changed.await.unwrap();
    fixture.settle().await;
    fixture.sweep().await;
    assert_eq!(
        fixture
            .count("SELECT count(*) FROM job WHERE kind = 'compact_day'")
            .await,
        0
    );
    assert_eq!(fixture.costs().await, [] as [i128; 0]);
}
