use super::*;

#[test]
fn figures_have_separators_and_fitting_precision() {
    for (value, text) in [
        (0.0, "0"),
        (-0.000_1, "0"),
        (0.1234, "0.123"),
        (1.5, "1.50"),
        (12.34, "12.3"),
        (999.6, "1,000"),
        (1_234_567.0, "1,234,567"),
        (-4321.0, "-4,321"),
    ] {
        assert_eq!(figure(value), text);
    }
    assert_eq!(percent(0.5), "50.0 %");
}
