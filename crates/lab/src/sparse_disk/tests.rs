use super::*;
use crate::catalogue;

#[test]
fn blocks_come_back_as_they_were_written() {
    let spec = catalogue::find("ddrdrive-x1").unwrap().device;
    let disk = SparseDisk::new("disk", &spec, 1).unwrap();
    rt::Runtime::simulated(1).block_on(async move {
        let mut data = IoBuf::zeroed(3 * BLOCK_LEN);
        fill_with(&mut data[..BLOCK_LEN], 0x0123_4567_89ab_cdef);
        data[2 * BLOCK_LEN + 5] = 7;
        let data = data.freeze();
        disk.write(BLOCK_BYTES, data.clone(), true).await.unwrap();
        let read = disk.read(BLOCK_BYTES, IoBuf::zeroed(3 * BLOCK_LEN)).await.unwrap();
        assert_eq!(read[..], data[..]);
        assert_eq!(disk.state.borrow().whole.len(), 1, "only the block whose words differ");
        disk.discard(0, 4 * BLOCK_BYTES, false).await.unwrap();
        let read = disk.read(0, IoBuf::zeroed(4 * BLOCK_LEN)).await.unwrap();
        assert!(read.iter().all(|byte| *byte == 0));
        assert!(disk.state.borrow().whole.is_empty());
        let past = disk.geometry().size_bytes;
        assert!(disk.write(past, IoBuf::zeroed(BLOCK_LEN).freeze(), false).await.is_err());
        assert_eq!(disk.stats().written_bytes, 3 * BLOCK_BYTES);
    });
}
