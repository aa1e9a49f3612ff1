//! Prefetch: asks the processor for memory that is needed soon. It changes no result.

/// Asks for an element of `of`; nothing where there is no such element.
#[inline]
pub(crate) fn prefetch<T>(of: &[T], index: usize) {
    #[cfg(target_arch = "x86_64")]
    if let Some(element) = of.get(index) {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: the instruction changes nothing and faults on no address.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(std::ptr::from_ref(element).cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (of, index);
}
