//! Values of a type, which stand for what a function returns.

use syn::{GenericArgument, PathArguments, ReturnType, Type};

/// Values that a function may return instead. A value that does not build is dropped later.
pub fn values_returned(output: &ReturnType) -> Vec<String> {
    match output {
        ReturnType::Default => vec!["()".to_owned()],
        ReturnType::Type(_, ty) => values(ty),
    }
}

fn values(ty: &Type) -> Vec<String> {
    match ty {
        Type::Tuple(tuple) if tuple.elems.is_empty() => vec!["()".to_owned()],
        Type::Tuple(tuple) => {
            let each: Vec<_> = tuple.elems.iter().map(first).collect();
            each.into_iter()
                .collect::<Option<Vec<_>>>()
                .map_or(Vec::new(), |all| vec![format!("({})", all.join(", "))])
        }
        Type::Paren(inner) => values(&inner.elem),
        Type::Reference(reference) => of_reference(reference),
        Type::Array(array) => wrapped(&array.elem, |v| format!("[{v}; _]")),
        Type::Path(path) => of_path(path),
        Type::Never(_) | Type::ImplTrait(_) | Type::TraitObject(_) => Vec::new(),
        _ => vec!["Default::default()".to_owned()],
    }
}

fn first(ty: &Type) -> Option<String> {
    values(ty).into_iter().next()
}

fn wrapped(ty: &Type, wrap: impl Fn(&str) -> String) -> Vec<String> {
    values(ty).iter().map(|value| wrap(value)).collect()
}

fn of_reference(reference: &syn::TypeReference) -> Vec<String> {
    let is_str = matches!(&*reference.elem, Type::Path(path) if path.path.is_ident("str"));
    match (&*reference.elem, reference.mutability) {
        (_, None) if is_str => vec!["\"\"".to_owned(), "\"xyzzy\"".to_owned()],
        (Type::Slice(_), None) => vec!["&[]".to_owned()],
        (Type::Slice(_), Some(_)) => vec!["&mut []".to_owned()],
        (inner, None) => wrapped(inner, |v| format!("Box::leak(Box::new({v}))")),
        (_, Some(_)) => Vec::new(),
    }
}

fn of_path(path: &syn::TypePath) -> Vec<String> {
    let owned = |all: &[&str]| all.iter().map(|&s| s.to_owned()).collect::<Vec<_>>();
    let Some(last) = path.path.segments.last() else { return Vec::new() };
    let arguments: Vec<&Type> = match &last.arguments {
        PathArguments::AngleBracketed(angle) => {
            let types = angle.args.iter().filter_map(|argument| match argument {
                GenericArgument::Type(ty) => Some(ty),
                _ => None,
            });
            types.collect()
        }
        _ => Vec::new(),
    };
    match (last.ident.to_string().as_str(), arguments.as_slice()) {
        ("bool", _) => owned(&["true", "false"]),
        ("u8" | "u16" | "u32" | "u64" | "u128" | "usize", _) => owned(&["0", "1"]),
        ("i8" | "i16" | "i32" | "i64" | "i128" | "isize", _) => owned(&["0", "1", "-1"]),
        ("f32" | "f64", _) => owned(&["0.0", "1.0", "-1.0"]),
        ("String", _) => owned(&["String::new()"]),
        ("Ordering", _) => owned(&["std::cmp::Ordering::Equal"]),
        ("Option", [inner]) => {
            let mut all = owned(&["None"]);
            all.extend(wrapped(inner, |v| format!("Some({v})")));
            all
        }
        ("Result", [inner, ..]) => wrapped(inner, |v| format!("Ok({v})")),
        ("Vec", [inner]) => {
            let mut all = owned(&["Vec::new()"]);
            all.extend(wrapped(inner, |v| format!("vec![{v}]")));
            all
        }
        ("Box" | "Rc" | "Arc" | "Cell" | "RefCell", [Type::TraitObject(_)]) => Vec::new(),
        (name @ ("Box" | "Rc" | "Arc" | "Cell" | "RefCell"), [inner]) => {
            wrapped(inner, |v| format!("{name}::new({v})"))
        }
        ("Self", _) => Vec::new(),
        _ => owned(&["Default::default()"]),
    }
}
