use super::*;
use crate::catalogue;

#[test]
fn points_divide_each_axis_into_equal_steps() {
    for count in [3, 23] {
        let points: Vec<Vec<f64>> = (0..count).map(|number| point(8, number, count)).collect();
        let axis = |a: usize| points.iter().map(|point| point[a]).collect::<Vec<f64>>();
        for a in 0..8 {
            let mut places = axis(a);
            places.sort_by(f64::total_cmp);
            for (k, place) in places.iter().enumerate() {
                assert!((place - (k as f64 + 0.5) / f64::from(count)).abs() < 1e-9);
            }
        }
        assert!(count == 3 || (1..8).all(|a| axis(a) != axis(0)), "axes move apart");
    }
    assert_eq!((primitive_root(3), primitive_root(23)), (2, 5));
}

#[test]
fn variants_move_assumed_numbers_alone_and_stay_in_their_intervals() {
    for id in ["ocz-vertex-2-pro-50gb", "intel-320-160gb", "ddrdrive-x1", "intel-p4800x-375gb"] {
        let page = catalogue::find(id).expect("built in");
        let paths = assumed(&page);
        assert!(paths.len() >= 3, "{id}: {paths:?}");
        let base = explicit(&page);
        for number in 0..23 {
            let moved = serde_json::to_value(variant(&page, number, 23).expect(id)).unwrap();
            let mut leaves = Vec::new();
            numbers("", &base, &mut leaves);
            for path in leaves {
                let pointer = format!("/{}", path.replace('.', "/"));
                let at = |tree: &Value| tree.pointer(&pointer).unwrap().as_f64().unwrap();
                let ratio = at(&moved) / at(&base);
                let least = if paths.contains(&path) { 0.5 } else { 1.0 };
                assert!((least..=2.0 - least).contains(&ratio), "{id}, {path}: {ratio}");
            }
        }
        assert_ne!(variant(&page, 0, 23).unwrap(), variant(&page, 1, 23).unwrap());
        assert_eq!(variant(&page, 0, 23).unwrap(), variant(&page, 0, 23).unwrap());
    }
}
