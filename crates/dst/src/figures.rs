//! What a pool says of itself: it is the same after an export and an import, and nothing is taken
//! of a pool without volumes.
//!
//! What enters: a running pool without requests. What leaves: an objection, in the model.
//! Who calls: `boot.rs` after imports, `judgement.rs` at the end of a boot.

use crate::boot_context::BootContext;
use crate::model::Model;
use crate::subject::{Figures, Pool, Subject};
use crate::verdict::Kind;

/// The figures of a pool that takes no requests. `None` when it has none, or they change on.
async fn settled(model: &Model, pool: &impl Pool) -> Option<Figures> {
    match pool.figures().await {
        Ok(figures) => {
            let name = if figures.is_some() { "figures settled" } else { "figures not settled" };
            model.count(name, 1);
            figures
        }
        Err(refusal) => {
            model.error_seen("figures", &refusal.message);
            None
        }
    }
}

/// Before an export: notes what the next import must find.
pub(crate) async fn note<S: Subject>(context: &BootContext<S>, pool: &S::Pool) {
    context.phase.set("figures");
    let figures = settled(&context.model, pool).await;
    context.model.figures.replace(figures);
}

/// After an import: objects to what is not as it was when the pool was exported.
pub(crate) async fn compare<S: Subject>(context: &BootContext<S>, pool: &S::Pool, noted: &Figures) {
    let model = &context.model;
    context.phase.set("figures");
    let Some(Figures { lines, .. }) = settled(model, pool).await else { return };
    let differ = |(before, now): &(&String, &String)| before != now;
    if let Some((before, now)) = noted.lines.iter().zip(&lines).find(differ) {
        let text = format!("before the export: {before}; after the import: {now}");
        return model.object(Kind::Figures, text);
    }
    if noted.lines.len() != lines.len() {
        let (before, now) = (noted.lines.len(), lines.len());
        let text = format!("{before} lines of figures before the export, and {now} afterwards");
        model.object(Kind::Figures, text);
    }
}

/// After an import: objects when a volume has not the `sync` that was set. Where the power failed
/// before the answer, what it has counts from now on.
pub(crate) fn check_sync(model: &Model, pool: &impl Pool) {
    for id in model.ids() {
        let name = model.name_of(id);
        let Some(found) = pool.sync_of(&name) else { continue };
        let set = model.update(id, |v| v.sync.replace(found)).flatten();
        if let Some(set) = set.filter(|set| *set != found) {
            let text = format!("{name} has sync {found:?}, and {set:?} was set");
            return model.object(Kind::Volumes, text);
        }
    }
}

/// Destroys everything, and objects to what is taken of the pool then.
pub(crate) async fn check_emptied<S: Subject>(context: &BootContext<S>, pool: &S::Pool) {
    let model = &context.model;
    context.phase.set("emptying");
    let mut refused = String::new();
    for name in pool.receiving() {
        if let Err(refusal) = pool.abandon_receive(&name).await {
            let text = format!("the part of a stream to {name} stays: {}", refusal.message);
            return model.object(Kind::Volumes, text);
        }
    }
    for (name, tags) in pool.holds().await {
        for tag in tags {
            if let Err(refusal) = pool.hold_snapshot(&name, &tag, true).await {
                let text = format!("{name} keeps tag {tag}: {}", refusal.message);
                return model.object(Kind::Volumes, text);
            }
        }
    }
    // A volume stays while a clone of a snapshot of it is there.
    for _ in 0..=model.ids().len() {
        for name in pool.volumes() {
            if let Err(refusal) = pool.destroy_volume(&name).await {
                refused = refusal.message;
            }
        }
    }
    let left = pool.volumes().len();
    if left > 0 {
        let text = format!("{left} volumes cannot be destroyed: {refused}");
        return model.object(Kind::Volumes, text);
    }
    let Some(Figures { taken, .. }) = settled(model, pool).await else { return };
    if let Some((what, count)) = taken.iter().find(|(_, count)| *count > 0) {
        model.object(Kind::Leak, format!("{count} {what} are left of a pool without volumes"));
    }
}
