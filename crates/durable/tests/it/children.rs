//! Waiting parents.

use towpath_domain::job::JobState;

use crate::support::{Op, Script};
use crate::{on_each, on_each_form};

on_each_form! {
    async fn the_last_child_readies_its_parent(world) {
        let workers = world.workers(2);
        let children = (0..5).map(|nth| Script::new(&format!("child {nth}"), [])).collect();
        let parent = world.start(Script::new("a", [Op::Step("plan".into()), Op::Children(children, Some(("export:1".into(), 2))), Op::CheckChildren])).await;
        let row = world.until_over(parent).await;
        assert_eq!(row.state, JobState::Succeeded);
        assert_eq!(row.attempt, 1, "waiting is no attempt");
        assert_eq!(world.shared.count("a/plan"), 1);
        let children = world.store.read(async |tx| towpath_store::jobs::children(tx, parent, 9).await).await.unwrap();
        assert_eq!(children.len(), 5);
        for child in children {
            assert_eq!(child.state, JobState::Succeeded);
            assert!(child.finished_at <= row.finished_at);
        }
        workers.drain(crate::support::PATIENCE).await;
        world.check_invariants().await;
    }
}

on_each_form! {
    async fn a_child_that_ends_badly_readies_its_parent_and_the_siblings_are_cancelled(world) {
        let workers = world.workers(3);
        let children = vec![Script::new("bad", [Op::Fatal]), Script::new("slow", [Op::Gate("never".into())]), Script::new("queued", [])];
        let parent = world.start(Script::new("a", [Op::Children(children, Some(("export:1".into(), 2))), Op::CheckChildren, Op::Gate("never".into())])).await;
        let row = world.until_over(parent).await;
        assert_eq!(row.state, JobState::Failed);
        let children = world.store.read(async |tx| towpath_store::jobs::children(tx, parent, 9).await).await.unwrap();
        for child in children {
            let row = world.until_over(child.id).await;
            assert_ne!(row.state, JobState::Running);
        }
        let effects = world.effects().await;
        assert!(effects.contains(&"a failed".to_owned()) && effects.contains(&"slow cancelled".to_owned()), "{effects:?}");
        workers.drain(crate::support::PATIENCE).await;
        world.check_invariants().await;
    }
}

on_each! {
    async fn a_parent_with_nothing_to_write_takes_its_open_children_along(world) {
        let workers = world.workers(3);
        let children = vec![Script::new("bad", [Op::Fatal]), Script::new("slow", [Op::Gate("never".into())])];
        let parent = world.start(Script::new("a", [Op::Children(children, None), Op::Done])).await;
        assert_eq!(world.until_over(parent).await.state, JobState::Succeeded);
        world.until_drained().await;
        assert!(world.effects().await.contains(&"slow cancelled".to_owned()));
        workers.drain(crate::support::PATIENCE).await;
        world.check_invariants().await;
    }
}

on_each! {
    async fn a_child_that_is_not_waited_for_is_refused(world) {
        let workers = world.workers(2);
        let stray = Op::Stray(Box::new(Script::new("stray", [])), Vec::new());
        let parent = world.start(Script::new("a", [Op::Effect("before".into()), stray])).await;
        let row = world.until_over(parent).await;
        assert_eq!(row.state, JobState::Failed);
        assert!(row.error.unwrap_or_default().contains("ctx.wait"));
        let children = world.store.read(async |tx| towpath_store::jobs::children(tx, parent, 9).await).await.unwrap();
        assert!(children.is_empty());
        workers.drain(crate::support::PATIENCE).await;
        world.check_invariants().await;
    }
}

on_each! {
    async fn a_child_of_another_job_does_not_hide_one_of_ones_own(world) {
        let workers = world.workers(2);
        let other = world.start(Script::new("other", [Op::Gate("later".into())])).await;
        let stray = Op::Stray(Box::new(Script::new("stray", [])), vec![other]);
        let parent = world.start(Script::new("a", [stray])).await;
        let row = world.until_over(parent).await;
        assert_eq!(row.state, JobState::Failed);
        assert!(row.error.unwrap_or_default().contains("ctx.wait"));
        for parent in [parent, other] {
            let children = world.store.read(async |tx| towpath_store::jobs::children(tx, parent, 9).await).await.unwrap();
            assert!(children.is_empty(), "nothing of the closure stays");
        }
        world.shared.open("later");
        assert_eq!(world.until_over(other).await.state, JobState::Succeeded);
        workers.drain(crate::support::PATIENCE).await;
        world.check_invariants().await;
    }
}
