use super::*;
use crate::catalogue;

fn mirror(change: impl Fn(&mut DeviceSpec)) -> MirrorOutcome {
    let left = catalogue::find("ocz-vertex-2-ex-50gb").expect("built in").device;
    let mut right = left.clone();
    change(&mut right);
    Mirror { left, right, cycles: 20.0, seed: 4 }.run().expect("runs")
}

#[test]
fn equal_sides_wear_out_together_and_a_larger_side_later() {
    let equal = mirror(|_| {});
    let gap = (equal.right_passes / equal.left_passes - 1.0).abs();
    assert!(gap < 0.05, "{gap}");
    let unequal = mirror(|right| {
        if let MediaSpec::Flash(flash) = &mut right.media {
            flash.geometry.blocks_per_plane *= 2;
        }
    });
    // Twice the flash lasts more than twice as long: it also has to be cleaned less.
    assert!(unequal.right_passes > 2.0 * unequal.left_passes, "{unequal:?}");
    assert!(unequal.right_amplification < unequal.left_amplification);
    for pair in unequal.wear.windows(2) {
        assert!(pair[0].1 <= pair[1].1 && pair[0].2 <= pair[1].2, "blocks do not heal");
    }
}

#[test]
fn mirror_of_memory_is_refused() {
    let left = catalogue::find("ddrdrive-x1").expect("built in").device;
    let error = Mirror { right: left.clone(), left, cycles: 20.0, seed: 0 }.run();
    assert_eq!(error.expect_err("DRAM").exit_code(), 2);
}
