use forebay_rt::Runtime;
use forebay_rt::net::pair;

use super::*;

#[test]
fn pieces_come_back_in_order_up_to_the_end() {
    Runtime::simulated(1).block_on(async {
        let (near, far) = pair();
        let sending = forebay_rt::spawn(async move {
            for len in [1, 4096, FRAME_MAX_BYTES] {
                put(&near, vec![len as u8; len]).await.unwrap();
            }
            put(&near, Vec::new()).await.unwrap();
        });
        for len in [1, 4096, FRAME_MAX_BYTES] {
            assert_eq!(take(&far).await.unwrap(), Some(vec![len as u8; len]));
        }
        assert_eq!(take(&far).await.unwrap(), None);
        sending.await;
        assert!(take(&far).await.is_err(), "the connection has ended");
    });
}

#[test]
fn a_length_out_of_bounds_is_refused_before_memory_is_taken() {
    Runtime::simulated(2).block_on(async {
        let (near, far) = pair();
        let long = put(&near, vec![0; FRAME_MAX_BYTES + 1]).await;
        assert!(matches!(long, Err(WireError::Length { .. })));
        near.send_all(u32::MAX.to_be_bytes().to_vec()).await.0.unwrap();
        assert!(matches!(take(&far).await, Err(WireError::Length { .. })));
    });
}

#[test]
fn a_connection_that_ends_within_a_piece_is_no_end_of_the_stream() {
    for cut in 1..14 {
        Runtime::simulated(cut as u64).block_on(async move {
            let (near, far) = pair();
            let whole = [&10u32.to_be_bytes()[..], &[7; 10]].concat();
            if cut < whole.len() {
                near.send_all(whole[..cut].to_vec()).await.0.unwrap();
            }
            near.shutdown();
            assert!(take(&far).await.is_err(), "cut at {cut}");
        });
    }
}
