//! The mutants of a source file: a walk over its syntax tree that writes edits.
//!
//! Constants, patterns, types, macros and tests are passed over, and so is what only words an
//! error (`Display`, `Debug`).

use std::ops::Range;

use syn::spanned::Spanned;
use syn::visit::{self, Visit};
use syn::{Attribute, BinOp, Block, Expr, Lit, Pat, Stmt, UnOp};

use crate::edit::{Edit, IS_ON, Part};
use crate::operators::{Operands, Operator, operator};
use crate::values::values_returned;

/// One change of the source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mutant {
    /// Its number, from 1.
    pub number: u32,
    /// Source file, relative to the repository.
    pub file: String,
    /// Line, from 1.
    pub line: usize,
    /// Column, from 1.
    pub column: usize,
    /// What changes.
    pub change: String,
    /// Its function and the text of its line, which say what it is about.
    pub context: String,
}

impl Mutant {
    /// Its name in results: place and change.
    pub fn name(&self) -> String {
        format!("{}:{}:{}: {}", self.file, self.line, self.column, self.change)
    }

    /// The crate that it is in.
    pub fn package(&self) -> &str {
        self.file.split('/').nth(1).unwrap_or_default()
    }
}

/// The mutants of a file and the edits that put them in.
#[derive(Debug, Default)]
pub struct Found {
    /// The mutants in order of number.
    pub mutants: Vec<Mutant>,
    /// The edits, outer ones first.
    pub edits: Vec<Edit>,
}

/// Finds the mutants of a source. `next` is the first number to give.
pub fn find(file: &str, source: &str, next: u32) -> syn::Result<Found> {
    let tree = syn::parse_file(source)?;
    let mut finder =
        Finder { file, source, next, function: 0..0, names: Vec::new(), found: Found::default() };
    finder.visit_file(&tree);
    Ok(finder.found)
}

struct Finder<'a> {
    file: &'a str,
    source: &'a str,
    next: u32,
    /// The function that is walked over; empty outside of functions.
    function: Range<usize>,
    names: Vec<String>,
    found: Found,
}

fn range_of(node: &impl Spanned) -> Range<usize> {
    node.span().byte_range()
}

fn is_test_only(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        attribute.path().is_ident("test")
            || (attribute.path().is_ident("cfg")
                && matches!(&attribute.meta, syn::Meta::List(list)
                    if list.tokens.to_string().contains("test")))
    })
}

fn has_let(condition: &Expr) -> bool {
    match condition {
        Expr::Let(_) => true,
        Expr::Binary(binary) => has_let(&binary.left) || has_let(&binary.right),
        _ => false,
    }
}

fn text(fixed: &str) -> Part {
    Part::Text(fixed.to_owned())
}

impl Finder<'_> {
    fn mutant(&mut self, at: usize, change: String, written: &str) -> Part {
        let before = &self.source[..at];
        let line = before.matches('\n').count() + 1;
        let column = before.len() - before.rfind('\n').map_or(0, |end| end + 1) + 1;
        let number = self.next;
        self.next += 1;
        let file = self.file.to_owned();
        let text = self.source.lines().nth(line - 1).unwrap_or_default();
        let context = format!("{} {text}", self.names.join("::"));
        self.found.mutants.push(Mutant { number, file, line, column, change, context });
        Part::Mutant(number, written.to_owned())
    }

    fn edit(&mut self, range: Range<usize>, parts: Vec<Part>) {
        let function = self.function.clone();
        self.found.edits.push(Edit { range, parts, function, leaves_out: false });
    }

    /// A short form of a piece of source for the name of a mutant.
    fn quoted(&self, range: &Range<usize>) -> String {
        const MAX_CHARS: usize = 48;
        let all: Vec<&str> = self.source[range.clone()].split_whitespace().collect();
        let all = all.join(" ");
        if all.chars().count() <= MAX_CHARS {
            return all;
        }
        format!("{}…", all.chars().take(MAX_CHARS).collect::<String>())
    }

    fn in_function(&mut self, name: &str, range: Range<usize>, walk: impl FnOnce(&mut Self)) {
        let outer = std::mem::replace(&mut self.function, range);
        self.names.push(name.to_owned());
        walk(self);
        self.names.pop();
        self.function = outer;
    }

    /// Mutants that return at once.
    fn early_returns(&mut self, signature: &syn::Signature, block: &Block) {
        let at = block.brace_token.span.open().byte_range().end;
        if block.stmts.is_empty() {
            return;
        }
        let values = values_returned(&signature.output);
        let name = self.names.join("::");
        let parts: Vec<Part> = values
            .iter()
            .map(|value| {
                let written = format!(" if {IS_ON} {{ return {value}; }}");
                self.mutant(at - 1, format!("{name} returns {value} at once"), &written)
            })
            .collect();
        if !parts.is_empty() {
            self.edit(at..at, parts);
        }
    }

    fn function_of(&mut self, node: &impl Spanned, signature: &syn::Signature, block: &Block) {
        if signature.constness.is_some() || signature.unsafety.is_some() {
            return;
        }
        self.in_function(&signature.ident.to_string(), range_of(node), |finder| {
            finder.early_returns(signature, block);
            visit::visit_block(finder, block);
        });
    }

    /// Forces a condition, or each of a chain with `let`. `to_true` also forces it to be true.
    fn condition(&mut self, condition: &Expr, to_true: bool) {
        let range = range_of(condition);
        match condition {
            Expr::Binary(binary) if has_let(condition) => {
                self.condition(&binary.left, to_true);
                self.condition(&binary.right, to_true);
            }
            Expr::Let(binding) => {
                let change = format!("`{}` does not match", self.quoted(&range));
                let inner = range_of(&*binding.expr);
                let off = self.mutant(range.start, change, &format!(" && !{IS_ON}"));
                let parts = vec![Part::Source(inner.clone()), off];
                self.edit(inner, parts);
                self.visit_expr(&binding.expr);
            }
            _ => {
                let quoted = self.quoted(&range);
                let mut parts = vec![text("(("), Part::Source(range.clone()), text(")")];
                if to_true {
                    let change = format!("`{quoted}` counts as true");
                    parts.push(self.mutant(range.start, change, &format!(" || {IS_ON}")));
                }
                parts.push(text(")"));
                let change = format!("`{quoted}` counts as false");
                parts.push(self.mutant(range.start, change, &format!(" && !{IS_ON}")));
                parts.insert(0, text("("));
                parts.push(text(")"));
                self.edit(range, parts);
                self.visit_expr(condition);
            }
        }
    }

    fn binary(&mut self, binary: &syn::ExprBinary, operator: &Operator) {
        let (left, right) = (range_of(&*binary.left), range_of(&*binary.right));
        let at = range_of(&binary.op).start;
        let Operator { text: op, operands, instead } = operator;
        let change = |to: &str| format!("`{op}` becomes `{to}`");
        let (left, right) = (Part::Source(left), Part::Source(right));
        let mut parts = match operands {
            Operands::Lazy => {
                let to = instead[0];
                let exchanged = format!(" != {IS_ON}");
                let same = |number: &Part| match number {
                    Part::Mutant(number, _) => Part::Mutant(*number, exchanged.clone()),
                    other => other.clone(),
                };
                // a || b is !(!a && !b).
                let on = self.mutant(at, change(to), &exchanged);
                let joint = Part::Text(format!(") {op} (("));
                let (second, third) = (same(&on), same(&on));
                let open = text("((((");
                let middle = vec![open, left, text(")"), on, joint, right, text(")"), second];
                let mut all = middle;
                all.extend([text("))"), third, text(")")]);
                self.edit(range_of(binary), all);
                return;
            }
            Operands::Compared => {
                vec![text("(match (&("), left, text("), &("), right, text(")) { (l__, r__) => ")]
            }
            Operands::Taken => {
                vec![text("(match ("), left, text(", "), right, text(") { (l__, r__) => ")]
            }
            Operands::Assigned => {
                let open = text("(match ("); // the right side is evaluated first
                let middle = text(") { r__ => { let l__ = &mut (");
                vec![open, right, middle, left, text("); ")]
            }
        };
        let star = if *operands == Operands::Taken { "" } else { "*" };
        let right_star = if *operands == Operands::Compared { "*" } else { "" };
        for to in *instead {
            let written = format!("if {IS_ON} {{ {star}l__ {to} {right_star}r__ }} else ");
            parts.push(self.mutant(at, change(to), &written));
        }
        let close = if *operands == Operands::Assigned { " } })" } else { " })" };
        parts.push(Part::Text(format!("{{ {star}l__ {op} {right_star}r__ }}{close}")));
        self.edit(range_of(binary), parts);
    }

    fn literal(&mut self, literal: &syn::ExprLit) {
        let range = range_of(literal);
        let at = range.start;
        match &literal.lit {
            Lit::Int(int) => {
                let Ok(value) = int.base10_parse::<u64>() else { return };
                let (other, original) = (format!("{}{}", value + 1, int.suffix()), int.to_string());
                let written = format!("if {IS_ON} {{ {other} }} else ");
                let mutant = self.mutant(at, format!("{original} becomes {other}"), &written);
                let rest = format!("{{ {original} }})");
                self.edit(range, vec![text("("), mutant, Part::Text(rest)]);
            }
            Lit::Bool(bool) => {
                let change = format!("{} becomes {}", bool.value, !bool.value);
                let mutant = self.mutant(at, change, &format!(" != {IS_ON}"));
                let parts = vec![text("("), Part::Source(range.clone()), mutant, text(")")];
                self.edit(range, parts);
            }
            _ => {}
        }
    }

    /// `a.min(b)` becomes `a.max(b)`, and the other way round.
    fn exchanged_bound(&mut self, call: &syn::ExprMethodCall) {
        let method = call.method.to_string();
        let other = match method.as_str() {
            "min" => "max",
            "max" => "min",
            _ => return,
        };
        let [argument] = call.args.iter().collect::<Vec<_>>()[..] else { return };
        let at = range_of(&call.method).start;
        let written = format!("if {IS_ON} {{ l__.{other}(r__) }} else ");
        let mutant = self.mutant(at, format!("`{method}` becomes `{other}`"), &written);
        let parts = vec![
            text("(match ("),
            Part::Source(range_of(&*call.receiver)),
            text(", "),
            Part::Source(range_of(argument)),
            text(") { (l__, r__) => "),
            mutant,
            Part::Text(format!("{{ l__.{method}(r__) }} }})")),
        ];
        self.edit(range_of(call), parts);
    }

    /// The answer of an expression of type `bool` is turned round.
    fn negated(&mut self, range: Range<usize>) {
        let change = format!("`{}` answers the opposite", self.quoted(&range));
        let mutant = self.mutant(range.start, change, &format!(" != {IS_ON}"));
        let parts = vec![text("(("), Part::Source(range.clone()), text(")"), mutant, text(")")];
        self.edit(range, parts);
    }
}

/// Methods that answer a `bool`.
const QUESTIONS: &[&str] = &[
    "all",
    "any",
    "contains",
    "contains_key",
    "is_empty",
    "is_err",
    "is_none",
    "is_none_or",
    "is_ok",
    "is_ok_and",
    "is_some",
    "is_some_and",
    "starts_with",
];

/// Whether a statement of this expression may be left out.
fn can_be_left_out(expr: &Expr) -> bool {
    match expr {
        Expr::MethodCall(_) | Expr::Call(_) | Expr::Assign(_) => true,
        Expr::Await(inner) => can_be_left_out(&inner.base),
        Expr::Try(inner) => can_be_left_out(&inner.expr),
        Expr::Binary(binary) => {
            operator(&binary.op).is_some_and(|op| op.operands == Operands::Assigned)
        }
        _ => false,
    }
}

/// Whether leaving the statement out may leave a variable without a value, or borrowed.
fn ends_a_value(expr: &Expr) -> bool {
    match expr {
        Expr::Assign(_) => true,
        Expr::Call(call) => matches!(&*call.func, Expr::Path(path) if path.path.is_ident("drop")),
        _ => false,
    }
}

fn is_catch_all(arm: &syn::Arm) -> bool {
    arm.guard.is_none()
        && match &arm.pat {
            Pat::Wild(_) => true,
            Pat::Ident(ident) => {
                ident.subpat.is_none()
                    && ident.ident.to_string().chars().next().is_some_and(char::is_lowercase)
            }
            _ => false,
        }
}

impl<'ast> Visit<'ast> for Finder<'_> {
    fn visit_item(&mut self, item: &'ast syn::Item) {
        match item {
            syn::Item::Const(_) | syn::Item::Static(_) | syn::Item::Macro(_) => {}
            syn::Item::Enum(_) | syn::Item::Struct(_) | syn::Item::Type(_) => {}
            syn::Item::Mod(module) if is_test_only(&module.attrs) => {}
            syn::Item::Fn(function) if is_test_only(&function.attrs) => {}
            _ => visit::visit_item(self, item),
        }
    }

    fn visit_item_impl(&mut self, item: &'ast syn::ItemImpl) {
        let of = item.trait_.as_ref().and_then(|(_, path, _)| path.segments.last());
        let of = of.map(|last| last.ident.to_string()).unwrap_or_default();
        if matches!(of.as_str(), "Display" | "Debug" | "Error") || is_test_only(&item.attrs) {
            return;
        }
        let ty = match &*item.self_ty {
            syn::Type::Path(path) => path.path.segments.last().map(|last| last.ident.to_string()),
            _ => None,
        };
        self.names.push(ty.unwrap_or_else(|| "impl".to_owned()));
        for inner in &item.items {
            if let syn::ImplItem::Fn(function) = inner {
                self.function_of(function, &function.sig, &function.block);
            }
        }
        self.names.pop();
    }

    fn visit_item_trait(&mut self, item: &'ast syn::ItemTrait) {
        for inner in &item.items {
            if let syn::TraitItem::Fn(function) = inner {
                if let Some(block) = &function.default {
                    self.function_of(function, &function.sig, block);
                }
            }
        }
    }

    fn visit_item_fn(&mut self, function: &'ast syn::ItemFn) {
        self.function_of(function, &function.sig, &function.block);
    }

    fn visit_stmt(&mut self, statement: &'ast Stmt) {
        if let Stmt::Expr(expr, Some(_)) = statement {
            if can_be_left_out(expr) {
                let range = range_of(statement);
                let change = format!("without `{}`", self.quoted(&range));
                let question = self.mutant(range.start, change, &format!("if !{IS_ON}"));
                let parts = vec![question, text(" { "), Part::Source(range.clone()), text(" }")];
                self.edit(range, parts);
                if let Some(edit) = self.found.edits.last_mut() {
                    edit.leaves_out = ends_a_value(expr);
                }
            }
        }
        visit::visit_stmt(self, statement);
    }

    fn visit_expr_if(&mut self, expr: &'ast syn::ExprIf) {
        self.condition(&expr.cond, true);
        self.visit_block(&expr.then_branch);
        if let Some((_, other)) = &expr.else_branch {
            self.visit_expr(other);
        }
    }

    fn visit_expr_while(&mut self, expr: &'ast syn::ExprWhile) {
        self.condition(&expr.cond, false);
        self.visit_block(&expr.body);
    }

    fn visit_expr_match(&mut self, expr: &'ast syn::ExprMatch) {
        self.visit_expr(&expr.expr);
        let falls_through = expr.arms.iter().position(is_catch_all);
        for (at, arm) in expr.arms.iter().enumerate() {
            let range = range_of(&arm.pat);
            match &arm.guard {
                Some((_, guard)) => self.condition(guard, true),
                None if falls_through.is_some_and(|last| at < last) => {
                    let change = format!("no arm `{}`", self.quoted(&range));
                    let mutant = self.mutant(range.start, change, &format!(" if !{IS_ON}"));
                    self.edit(range.clone(), vec![Part::Source(range), mutant]);
                }
                None => {}
            }
            self.visit_expr(&arm.body);
        }
    }

    fn visit_expr_binary(&mut self, expr: &'ast syn::ExprBinary) {
        if let Some(operator) = operator(&expr.op) {
            self.binary(expr, &operator);
        }
        visit::visit_expr_binary(self, expr);
    }

    fn visit_expr_unary(&mut self, expr: &'ast syn::ExprUnary) {
        let op = match expr.op {
            UnOp::Not(_) => "!",
            UnOp::Neg(_) => "-",
            _ => return visit::visit_expr_unary(self, expr),
        };
        let (range, inner) = (range_of(expr), range_of(&*expr.expr));
        let written = format!("if {IS_ON} {{ v__ }} else ");
        let mutant = self.mutant(range.start, format!("without the `{op}`"), &written);
        let rest = Part::Text(format!("{{ {op}v__ }} }})"));
        let open = text("(match (");
        self.edit(range, vec![open, Part::Source(inner), text(") { v__ => "), mutant, rest]);
        visit::visit_expr_unary(self, expr);
    }

    fn visit_expr_method_call(&mut self, call: &'ast syn::ExprMethodCall) {
        self.exchanged_bound(call);
        if QUESTIONS.contains(&call.method.to_string().as_str()) {
            self.negated(range_of(call));
        }
        visit::visit_expr_method_call(self, call);
    }

    fn visit_expr_macro(&mut self, expr: &'ast syn::ExprMacro) {
        if expr.mac.path.is_ident("matches") {
            self.negated(range_of(expr));
        }
    }

    fn visit_expr_lit(&mut self, expr: &'ast syn::ExprLit) {
        self.literal(expr);
    }

    fn visit_expr_repeat(&mut self, expr: &'ast syn::ExprRepeat) {
        self.visit_expr(&expr.expr);
    }

    fn visit_expr_const(&mut self, _: &'ast syn::ExprConst) {}
    fn visit_pat(&mut self, _: &'ast Pat) {}
    fn visit_type(&mut self, _: &'ast syn::Type) {}
    fn visit_attribute(&mut self, _: &'ast Attribute) {}
    fn visit_bin_op(&mut self, _: &'ast BinOp) {}
    fn visit_generic_argument(&mut self, _: &'ast syn::GenericArgument) {}
}
