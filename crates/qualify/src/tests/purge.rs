//! What may be sent to which drive: tools' own output, as drives of qemu and others give it.

use super::*;

/// Of qemu's drive: it has Format for each namespace, and no Sanitize.
const CONTROLLER: &str = include_str!("purge/id-ctrl.json");
const ONE: &str = include_str!("purge/list-ns.json");
const TWO: &str = include_str!("purge/list-ns-2.json");

/// The same controller with another value of a field.
fn with(name: &str, value: u64) -> String {
    let mut page: serde_json::Value = serde_json::from_str(CONTROLLER).unwrap();
    page[name] = value.into();
    page.to_string()
}

#[test]
fn format_is_sent_to_the_named_namespace_alone() {
    assert_eq!((namespaces(ONE), namespaces(TWO)), (Ok(1), Ok(2)));
    assert_eq!(may_format(CONTROLLER, 1), Ok(()));
    assert_eq!(may_format(CONTROLLER, 2), Ok(()), "this one is for each namespace");
    let all = PurgeRefusal::OtherNamespaces { count: 2 };
    assert_eq!(may_format(&with("fna", 1), 2), Err(all.clone()));
    assert_eq!(may_format(&with("fna", 2), 2), Err(all));
    assert_eq!(may_format(&with("fna", 3), 1), Ok(()));
    let none = PurgeRefusal::NotOffered { command: "NVMe Format" };
    assert_eq!(may_format(&with("oacs", 0), 1), Err(none));
    assert_eq!(may_format("no JSON", 1), Err(PurgeRefusal::NotUnderstood));
    assert_eq!(namespaces("{}"), Err(PurgeRefusal::NotUnderstood));
}

#[test]
fn sanitize_erases_blocks_or_keys_of_drives_with_one_namespace() {
    let none = PurgeRefusal::NotOffered { command: "NVMe Sanitize" };
    assert_eq!(may_sanitize(CONTROLLER, 1), Err(none));
    assert_eq!(may_sanitize(&with("sanicap", 3), 1), Ok(Sanitize::Block));
    assert_eq!(may_sanitize(&with("sanicap", 1), 1), Ok(Sanitize::Crypto));
    let all = PurgeRefusal::OtherNamespaces { count: 2 };
    assert_eq!(may_sanitize(&with("sanicap", 3), 2), Err(all));
    // Overwriting alone wears flash, and is not asked for.
    assert!(may_sanitize(&with("sanicap", 4), 1).is_err());
}

#[test]
fn state_of_sanitize_is_read_from_either_layout() {
    let state = |text: &str| sanitize_state(text).unwrap();
    assert_eq!(state(r#"{"sprog":65535,"sstat":257}"#), SanitizeState::Done);
    assert_eq!(state(r#"{"sprog":1200,"sstat":2}"#), SanitizeState::Running);
    assert_eq!(state(r#"{"nvme0n1":{"sprog":1,"sstat":{"status":3}}}"#), SanitizeState::Failed);
    assert!(sanitize_state("{}").is_err() && sanitize_state("").is_err());
}

/// The end of `hdparm -I`, with these words about security.
fn drive(lines: &[&str]) -> String {
    let lines: Vec<String> = lines.iter().map(|line| format!("\t{line}\n")).collect();
    let end = "Logical Unit WWN Device Identifier: 50015178f3600000\n\tlocked\n";
    format!("/dev/sdb:\n\nATA device\n\t   *\tSMART\nSecurity: \n{}{end}", lines.concat())
}

#[test]
fn secure_erase_needs_a_drive_that_is_open_and_not_frozen() {
    let code = "Master password revision code = 65534";
    let free = ["\tsupported", "not\tenabled", "not\tlocked", "not\tfrozen"];
    let with = |at: usize, line: &'static str| {
        let mut lines = free;
        lines[at] = line;
        may_secure_erase(&drive(&[code, lines[0], lines[1], lines[2], lines[3]]))
    };
    assert_eq!(with(0, "\tsupported"), Ok(()));
    assert_eq!(with(3, "\tfrozen"), Err(PurgeRefusal::Frozen));
    assert_eq!(with(1, "\tenabled"), Err(PurgeRefusal::HasPassword));
    assert_eq!(with(2, "\tlocked"), Err(PurgeRefusal::HasPassword));
    let none = PurgeRefusal::NotOffered { command: "ATA secure erase" };
    assert_eq!(with(0, "not\tsupported"), Err(none.clone()));
    assert_eq!(may_secure_erase("\nATA device\n"), Err(none));
}

#[test]
fn purge_is_the_first_step_of_a_plan_and_takes_the_place_of_discards() {
    let wanted = PlanFor {
        profile: Profile::Quick,
        purpose: Purpose::Forebay,
        procedure: None,
        only: Some(Part::Durable),
        purge: Some(Purge::NvmeFormat),
        size_bytes: SIZE_BYTES,
        block_bytes: 512,
        read_only: false,
        sleeps: false,
        shrink: 1,
        seed: 1,
    };
    let plan = Plan::new(wanted).unwrap();
    let is_durable = |step: &Step| matches!(step.kind, StepKind::SyncWrites { .. });
    assert_eq!(plan.steps[0].kind, StepKind::Purge { way: Purge::NvmeFormat });
    assert_eq!(plan.steps[1].kind, StepKind::Fill);
    assert!(plan.steps.len() > 10 && plan.steps[2..].iter().all(is_durable));
    let purge = Some(Purge::Discard);
    let plan = Plan::new(PlanFor { purge, only: None, ..wanted }).unwrap();
    assert_eq!(plan.steps[0].kind, StepKind::Discard);
    let (procedure, only) = (Some(Procedure::Ddrdrive2010), None);
    let plan = Plan::new(PlanFor { procedure, only, ..wanted }).unwrap();
    let is_purge = |step: &&Step| matches!(step.kind, StepKind::Purge { .. });
    assert_eq!(plan.steps.iter().filter(is_purge).count(), 6);
    assert!(plan.steps.iter().all(|step| step.kind != StepKind::Discard));
}

#[test]
fn each_part_has_steps_and_no_step_is_in_two() {
    let whole = plan(Purpose::Zil, 1, 1);
    let mut count = 0;
    for part in Part::ALL {
        let own: Vec<&Step> = whole.steps.iter().filter(|s| part.has(s.kind)).collect();
        assert!(own.len() > 1, "{} has no step of its own", part.name());
        // The fill goes before each part.
        count += own.len() - 1;
    }
    assert_eq!(count + 1, whole.steps.len());
}

#[test]
fn device_without_discards_is_said_to_be_measured_as_it_is() {
    let mut run = qualify(fakes::HONEST, Purpose::Forebay, 1);
    let step = Step { kind: StepKind::Discard, job: run.outcomes[0].job };
    let mut outcome = Outcome::clone(&run.outcomes[0]);
    outcome.kind = step.kind;
    outcome.measured.ended = Ended::Failed { error: "no".to_owned(), is_unsupported: true };
    run.outcomes.insert(0, outcome);
    run.plan.steps.insert(0, step);
    let is_note = |r: &Reason| matches!(r, Reason::Note(text) if text.contains("no discards"));
    assert!(run.judge().reasons.iter().any(is_note));
}
