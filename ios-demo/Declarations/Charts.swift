// Declared after Apple's documentation of Swift Charts; see README.md.
import SwiftUI

public protocol Plottable {}
extension Double: Plottable {}
extension String: Plottable {}

public struct PlottableValue<Value: Plottable> {
    public static func value(_ labelKey: LocalizedStringKey, _ value: Value) -> PlottableValue<Value> { fatalError() }
}

@MainActor @preconcurrency
public protocol ChartContent {}

@resultBuilder
public enum ChartContentBuilder {
    public static func buildBlock<Content: ChartContent>(_ content: Content) -> Content { content }
    public static func buildExpression<Content: ChartContent>(_ content: Content) -> Content { content }
}

public struct BarMark: ChartContent {
    public init<X: Plottable, Y: Plottable>(x: PlottableValue<X>, y: PlottableValue<Y>) { fatalError() }
}
public enum AnnotationPosition { case trailing }

extension ChartContent {
    public func foregroundStyle<S: ShapeStyle>(_ style: S) -> some ChartContent { self }
    public func accessibilityLabel(_ label: Text) -> some ChartContent { self }
    public func accessibilityValue(_ value: Text) -> some ChartContent { self }
    public func annotation<C: View>(position: AnnotationPosition, @ViewBuilder content: () -> C) -> some ChartContent { self }
}

extension ForEach: ChartContent where Content: ChartContent {
    public init(_ data: Data, id: KeyPath<Data.Element, ID>, @ChartContentBuilder content: @escaping (Data.Element) -> Content) {
        fatalError()
    }
}

public struct Chart<Content: ChartContent>: Primitive {
    public init(@ChartContentBuilder content: () -> Content) { fatalError() }
    public init<Data: RandomAccessCollection, C: ChartContent>(
        _ data: Data, @ChartContentBuilder content: @escaping (Data.Element) -> C
    ) where Content == ForEach<Data, Data.Element.ID, C>, Data.Element: Identifiable { fatalError() }
}

extension View {
    public func chartXAxisLabel(_ labelKey: LocalizedStringKey) -> some View { self }
    public func chartYAxisLabel(_ labelKey: LocalizedStringKey) -> some View { self }
}
