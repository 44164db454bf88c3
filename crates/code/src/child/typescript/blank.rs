//! Finds types in a syntax tree and replaces them by blanks.

use oxc_ast::ast::{
    ArrowFunctionExpression, Class, ClassElement, Decorator, ExportAllDeclaration,
    ExportDeclaration, ExportDefaultDeclaration, ExportFromDeclaration, ExportNamedDeclaration,
    FormalParameter, Function, ImportDeclaration, ImportOrExportKind, MethodDefinition,
    MethodDefinitionType, PropertyDefinition, PropertyDefinitionType, TSAsExpression,
    TSEnumDeclaration, TSExternalModuleDeclaration, TSGlobalDeclaration, TSImportEqualsDeclaration,
    TSInterfaceDeclaration, TSNamespaceDeclaration, TSNonNullExpression, TSSatisfiesExpression,
    TSThisParameter, TSTypeAliasDeclaration, TSTypeAnnotation, TSTypeAssertion,
    TSTypeParameterDeclaration, TSTypeParameterInstantiation, VariableDeclaration,
    VariableDeclarator,
};
use oxc_ast_visit::{Visit, walk};
use oxc_span::{GetSpan as _, Span};
use oxc_syntax::scope::ScopeFlags;

/// Words before the name of a class member that exist only in TypeScript.
const MODIFIERS: [&str; 7] = [
    "public",
    "private",
    "protected",
    "readonly",
    "override",
    "abstract",
    "declare",
];

pub(super) struct Blanker<'s> {
    source: &'s str,
    text: Vec<u8>,
    /// The first syntax that cannot be removed: its place, and what it is.
    unsupported: Option<(usize, String)>,
}

impl<'s> Blanker<'s> {
    pub(super) fn new(source: &'s str) -> Self {
        Self {
            source,
            text: source.as_bytes().to_vec(),
            unsupported: None,
        }
    }

    /// # Errors
    /// The place and the name of something that cannot be removed.
    pub(super) fn finish(self) -> Result<String, (usize, String)> {
        match self.unsupported {
            Some(unsupported) => Err(unsupported),
            // Only whole tokens were replaced.
            None => Ok(String::from_utf8_lossy(&self.text).into_owned()),
        }
    }

    fn refuse(&mut self, span: Span, what: &str) {
        if self.unsupported.is_none() {
            self.unsupported = Some((span.start as usize, what.to_owned()));
        }
    }

    fn part(&self, start: u32, end: u32) -> &'s str {
        self.source
            .get(start as usize..end as usize)
            .unwrap_or_default()
    }

    /// Replaces everything but line ends.
    fn blank(&mut self, start: u32, end: u32) {
        let (start, end) = (start as usize, (end as usize).min(self.text.len()));
        for byte in self.text.get_mut(start..end).unwrap_or_default() {
            if *byte != b'\n' && *byte != b'\r' {
                *byte = b' ';
            }
        }
    }

    fn put(&mut self, at: u32, byte: u8) {
        if let Some(place) = self.text.get_mut(at as usize) {
            *place = byte;
        }
    }

    /// Replaces a statement or a class member. Without the semicolon, the next line could continue the one before.
    fn drop_whole(&mut self, span: Span) {
        self.blank(span.start, span.end);
        self.put(span.start, b';');
    }

    /// Replaces what follows an expression.
    fn drop_after_expression(&mut self, expression: Span, whole: Span) {
        self.blank(expression.end, whole.end);
        let rest = &self.source[whole.end as usize..];
        let next = rest.trim_start();
        let is_next_line = rest[..rest.len() - next.len()].contains('\n');
        // Without the type, the next line would continue this one.
        if is_next_line && next.starts_with(['(', '[', '`']) {
            let gap = self.part(expression.end, whole.end);
            let blanks = gap.len() - gap.trim_start().len();
            self.put(
                expression.end + u32::try_from(blanks).unwrap_or_default(),
                b';',
            );
        }
    }

    /// Replaces the first occurrence of a character between two places.
    fn drop_char(&mut self, char: char, start: u32, end: u32) {
        if let Some(at) = self.part(start, end).find(char) {
            let at = start + u32::try_from(at).unwrap_or_default();
            self.blank(at, at + 1);
        }
    }

    /// Replaces words of TypeScript between the start of a class member and its name.
    fn drop_modifiers(&mut self, start: u32, name: u32) {
        let part = self.part(start, name);
        let is_word = |char: char| char.is_alphanumeric() || char == '_' || char == '$';
        let mut at = 0;
        while let Some(found) = part[at..].find(is_word) {
            let from = at + found;
            let length = part[from..]
                .find(|char| !is_word(char))
                .unwrap_or(part.len() - from);
            let word = &part[from..from + length];
            if MODIFIERS.contains(&word) {
                let from = start + u32::try_from(from).unwrap_or_default();
                self.blank(from, from + u32::try_from(length).unwrap_or_default());
                if from == start {
                    self.put(from, b';');
                }
            }
            at = from + length;
        }
    }

    /// The end of a parameter's or a member's name, before `?` and its type.
    fn drop_optional(&mut self, is_optional: bool, mark: char, name: Span, end: u32) {
        if is_optional {
            self.drop_char(mark, name.end, end);
        }
    }
}

impl<'a> Visit<'a> for Blanker<'_> {
    fn visit_ts_type_annotation(&mut self, it: &TSTypeAnnotation<'a>) {
        self.blank(it.span.start, it.span.end);
    }

    fn visit_ts_type_parameter_declaration(&mut self, it: &TSTypeParameterDeclaration<'a>) {
        self.blank(it.span.start, it.span.end);
    }

    fn visit_ts_type_parameter_instantiation(&mut self, it: &TSTypeParameterInstantiation<'a>) {
        self.blank(it.span.start, it.span.end);
    }

    fn visit_ts_as_expression(&mut self, it: &TSAsExpression<'a>) {
        self.visit_expression(&it.expression);
        self.drop_after_expression(it.expression.span(), it.span);
    }

    fn visit_ts_satisfies_expression(&mut self, it: &TSSatisfiesExpression<'a>) {
        self.visit_expression(&it.expression);
        self.drop_after_expression(it.expression.span(), it.span);
    }

    fn visit_ts_non_null_expression(&mut self, it: &TSNonNullExpression<'a>) {
        self.visit_expression(&it.expression);
        self.blank(it.expression.span().end, it.span.end);
    }

    fn visit_ts_type_assertion(&mut self, it: &TSTypeAssertion<'a>) {
        self.visit_expression(&it.expression);
        self.blank(it.span.start, it.expression.span().start);
    }

    fn visit_ts_this_parameter(&mut self, it: &TSThisParameter<'a>) {
        let rest = &self.source[it.span.end as usize..];
        let comma = rest.len() - rest.trim_start().len();
        let comma = if rest[comma..].starts_with(',') {
            comma + 1
        } else {
            0
        };
        self.blank(
            it.span.start,
            it.span.end + u32::try_from(comma).unwrap_or_default(),
        );
    }

    fn visit_ts_interface_declaration(&mut self, it: &TSInterfaceDeclaration<'a>) {
        self.drop_whole(it.span);
    }

    fn visit_ts_type_alias_declaration(&mut self, it: &TSTypeAliasDeclaration<'a>) {
        self.drop_whole(it.span);
    }

    fn visit_variable_declaration(&mut self, it: &VariableDeclaration<'a>) {
        if it.declare {
            self.drop_whole(it.span);
        } else {
            walk::walk_variable_declaration(self, it);
        }
    }

    fn visit_variable_declarator(&mut self, it: &VariableDeclarator<'a>) {
        walk::walk_variable_declarator(self, it);
        self.drop_optional(it.definite, '!', it.id.span(), it.span.end);
    }

    fn visit_function(&mut self, it: &Function<'a>, flags: ScopeFlags) {
        if it.declare || it.body.is_none() {
            self.drop_whole(it.span);
        } else {
            walk::walk_function(self, it, flags);
        }
    }

    fn visit_arrow_function_expression(&mut self, it: &ArrowFunctionExpression<'a>) {
        walk::walk_arrow_function_expression(self, it);
        // No line end may come between the parameters and the arrow.
        if let Some(result) = &it.return_type
            && self.part(result.span.start, result.span.end).contains('\n')
        {
            self.blank(it.params.span.end - 1, it.params.span.end);
            self.put(result.span.end - 1, b')');
        }
    }

    fn visit_formal_parameter(&mut self, it: &FormalParameter<'a>) {
        if it.accessibility.is_some() || it.readonly || it.r#override {
            self.refuse(it.span, "TypeScript parameter properties are not supported: assign the fields in the constructor");
        }
        walk::walk_formal_parameter(self, it);
        self.drop_optional(it.optional, '?', it.pattern.span(), it.span.end);
    }

    fn visit_class(&mut self, it: &Class<'a>) {
        if it.declare {
            return self.drop_whole(it.span);
        }
        walk::walk_class(self, it);
        if it.r#abstract {
            let head = self.part(it.span.start, it.body.span.start);
            if let Some(at) = head.find("abstract") {
                let at = it.span.start + u32::try_from(at).unwrap_or_default();
                self.blank(at, at + 8);
            }
        }
        if let (Some(first), Some(last)) = (it.implements.first(), it.implements.last()) {
            let head = self.part(it.span.start, first.span.start);
            if let Some(at) = head.rfind("implements") {
                let at = it.span.start + u32::try_from(at).unwrap_or_default();
                self.blank(at, last.span.end);
            }
        }
    }

    fn visit_class_element(&mut self, it: &ClassElement<'a>) {
        if let ClassElement::TSIndexSignature(it) = it {
            self.drop_whole(it.span);
        } else {
            walk::walk_class_element(self, it);
        }
    }

    fn visit_method_definition(&mut self, it: &MethodDefinition<'a>) {
        let is_abstract = it.r#type == MethodDefinitionType::TSAbstractMethodDefinition;
        if is_abstract || it.value.body.is_none() {
            return self.drop_whole(it.span);
        }
        walk::walk_method_definition(self, it);
        let key = it.key.span();
        self.drop_modifiers(it.span.start, key.start);
        self.drop_optional(it.optional, '?', key, it.value.params.span.start);
    }

    fn visit_property_definition(&mut self, it: &PropertyDefinition<'a>) {
        let is_abstract = it.r#type == PropertyDefinitionType::TSAbstractPropertyDefinition;
        if is_abstract || it.declare {
            return self.drop_whole(it.span);
        }
        walk::walk_property_definition(self, it);
        let key = it.key.span();
        self.drop_modifiers(it.span.start, key.start);
        self.drop_optional(it.optional, '?', key, it.span.end);
        self.drop_optional(it.definite, '!', key, it.span.end);
    }

    fn visit_import_declaration(&mut self, it: &ImportDeclaration<'a>) {
        if it.import_kind == ImportOrExportKind::Type {
            self.drop_whole(it.span);
        } else {
            self.refuse(
                it.span,
                "the code cannot import modules; tools are in `servers`",
            );
        }
    }

    fn visit_export_declaration(&mut self, it: &ExportDeclaration<'a>) {
        self.refuse(it.span, "the code cannot export; return the value");
    }

    fn visit_export_named_declaration(&mut self, it: &ExportNamedDeclaration<'a>) {
        self.refuse(it.span, "the code cannot export; return the value");
    }

    fn visit_export_from_declaration(&mut self, it: &ExportFromDeclaration<'a>) {
        self.refuse(it.span, "the code cannot export; return the value");
    }

    fn visit_export_default_declaration(&mut self, it: &ExportDefaultDeclaration<'a>) {
        self.refuse(it.span, "the code cannot export; return the value");
    }

    fn visit_export_all_declaration(&mut self, it: &ExportAllDeclaration<'a>) {
        self.refuse(it.span, "the code cannot export; return the value");
    }

    fn visit_ts_enum_declaration(&mut self, it: &TSEnumDeclaration<'a>) {
        if it.declare {
            self.drop_whole(it.span);
        } else {
            self.refuse(it.span, "a TypeScript enum is not supported: use an object");
        }
    }

    fn visit_ts_namespace_declaration(&mut self, it: &TSNamespaceDeclaration<'a>) {
        self.refuse(
            it.span,
            "a TypeScript namespace is not supported: use an object",
        );
    }

    fn visit_ts_external_module_declaration(&mut self, it: &TSExternalModuleDeclaration<'a>) {
        self.drop_whole(it.span);
    }

    fn visit_ts_global_declaration(&mut self, it: &TSGlobalDeclaration<'a>) {
        self.drop_whole(it.span);
    }

    fn visit_ts_import_equals_declaration(&mut self, it: &TSImportEqualsDeclaration<'a>) {
        self.refuse(
            it.span,
            "the code cannot import modules; tools are in `servers`",
        );
    }

    fn visit_decorator(&mut self, it: &Decorator<'a>) {
        self.refuse(it.span, "decorators are not supported");
    }
}
