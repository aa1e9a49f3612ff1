use super::*;

#[test]
fn volumes_have_whole_blocks_and_a_largest_size() {
    for good in [4096, 8192, MAX_VOLUME_BYTES] {
        assert_eq!(check_size(good), Ok(()), "{good}");
    }
    for bad in [0, 1, 4095, 4097, MAX_VOLUME_BYTES + 4096, u64::MAX] {
        let refused = VolumeError::BadSize { size_bytes: bad, limit_bytes: MAX_VOLUME_BYTES };
        assert_eq!(check_size(bad), Err(refused));
    }
}
