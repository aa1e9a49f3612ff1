use crate::subject::Cause;

use super::*;

#[test]
fn refusal_names_struck_devices_and_no_others() {
    let suspects: Vec<Suspect> =
        [("disk0", true), ("disk1", false), ("disk10", true), ("log2", true)]
            .map(|(name, is_struck)| Suspect { name: name.to_owned(), is_struck })
            .to_vec();
    let judge = |cause: Cause, blamed: &[&str], named: &[&str]| {
        let names = |of: &[&str]| of.iter().map(|name| (*name).to_owned()).collect();
        let (blamed, named) = (names(blamed), names(named));
        super::judge(&Refusal { cause, blamed, named, ..Refusal::default() }, &suspects)
    };
    for (blamed, named) in [
        (&["disk0", "disk10"][..], &[][..]),
        (&["log2"], &[]),
        // Naming the location of damage blames no device.
        (&[], &["disk0", "disk1"]),
        (&["disk0"], &["disk1"]),
    ] {
        assert_eq!(judge(Cause::Other, blamed, named), Ok(()), "{blamed:?} {named:?}");
    }
    assert_eq!(judge(Cause::OtherMachine, &[], &[]), Ok(()));
    let blames_disk1 = BadRefusal::BlamesWell { device: "disk1".to_owned() };
    let struck = ["disk0", "disk10", "log2"].map(str::to_owned).to_vec();
    let names_none = BadRefusal::NamesNone { struck };
    for (blamed, named, wrong) in [
        (&[][..], &[][..], &names_none),
        (&[], &["disk1"], &names_none),
        (&["disk1000"], &[], &names_none),
        (&["disk0", "disk1"], &[], &blames_disk1),
        (&["disk1"], &["disk0"], &blames_disk1),
    ] {
        let judged = judge(Cause::Other, blamed, named);
        assert_eq!(judged.as_ref(), Err(wrong), "{blamed:?} {named:?}");
    }
    assert_eq!(judge(Cause::OtherMachine, &["disk1"], &[]), Err(blames_disk1));
}
