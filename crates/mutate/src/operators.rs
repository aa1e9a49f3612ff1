//! Which operators take the place of which.

use syn::BinOp;

/// How the operands of an operator are taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operands {
    /// By reference: comparisons.
    Compared,
    /// By value: arithmetic and bits.
    Taken,
    /// The left one is changed.
    Assigned,
    /// Only as far as needed: `&&` and `||`.
    Lazy,
}

/// An operator: its text, how it takes its operands, and what stands in its place.
pub struct Operator {
    /// The operator itself.
    pub text: &'static str,
    /// How it takes its operands.
    pub operands: Operands,
    /// Its mutants.
    pub instead: &'static [&'static str],
}

/// The operator of an expression, with its mutants.
pub fn operator(op: &BinOp) -> Option<Operator> {
    use Operands::{Assigned, Compared, Lazy, Taken};
    let (text, operands, instead): (_, _, &[&str]) = match op {
        BinOp::Eq(_) => ("==", Compared, &["!="]),
        BinOp::Ne(_) => ("!=", Compared, &["=="]),
        BinOp::Lt(_) => ("<", Compared, &["<=", "==", ">"]),
        BinOp::Gt(_) => (">", Compared, &[">=", "==", "<"]),
        BinOp::Le(_) => ("<=", Compared, &["<", ">"]),
        BinOp::Ge(_) => (">=", Compared, &[">", "<"]),
        BinOp::Add(_) => ("+", Taken, &["-", "*"]),
        BinOp::Sub(_) => ("-", Taken, &["+", "/"]),
        BinOp::Mul(_) => ("*", Taken, &["+", "/"]),
        BinOp::Div(_) => ("/", Taken, &["%", "*"]),
        BinOp::Rem(_) => ("%", Taken, &["/", "+"]),
        BinOp::Shl(_) => ("<<", Taken, &[">>"]),
        BinOp::Shr(_) => (">>", Taken, &["<<"]),
        BinOp::BitAnd(_) => ("&", Taken, &["|", "^"]),
        BinOp::BitOr(_) => ("|", Taken, &["&", "^"]),
        BinOp::BitXor(_) => ("^", Taken, &["&", "|"]),
        BinOp::AddAssign(_) => ("+=", Assigned, &["-=", "*="]),
        BinOp::SubAssign(_) => ("-=", Assigned, &["+=", "/="]),
        BinOp::MulAssign(_) => ("*=", Assigned, &["+=", "/="]),
        BinOp::DivAssign(_) => ("/=", Assigned, &["%=", "*="]),
        BinOp::RemAssign(_) => ("%=", Assigned, &["/=", "+="]),
        BinOp::ShlAssign(_) => ("<<=", Assigned, &[">>="]),
        BinOp::ShrAssign(_) => (">>=", Assigned, &["<<="]),
        BinOp::BitAndAssign(_) => ("&=", Assigned, &["|=", "^="]),
        BinOp::BitOrAssign(_) => ("|=", Assigned, &["&=", "^="]),
        BinOp::BitXorAssign(_) => ("^=", Assigned, &["&=", "|="]),
        BinOp::And(_) => ("&&", Lazy, &["||"]),
        BinOp::Or(_) => ("||", Lazy, &["&&"]),
        _ => return None,
    };
    Some(Operator { text, operands, instead })
}
