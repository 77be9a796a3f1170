import AppModels
import AppParts
import SwiftUI

/// Reads the shipped models, and shows the four screens, or what to do where there is nothing to show.
struct RootScreen: View {
    @State private var shelf: ShelfModel

    init(_ equipment: Equipment) { _shelf = State(initialValue: ShelfModel(equipment)) }

    var body: some View {
        // Not a group, whose task would begin again with each case.
        ZStack {
            switch shelf.state {
            case .loading:
                ProgressView("Checking the models…").frame(maxWidth: .infinity, maxHeight: .infinity).background(Theme.ground)
            case .failed(let sentence): EmptyState(sentence: sentence)
            case .ready(let found) where found.usable.isEmpty:
                EmptyState(sentence: found.refused.map(\.why).joined(separator: "\n\n"))
            case .ready(let found): Tabs(found, shelf.equipment)
            }
        }
        .task { await shelf.open() }
    }
}

/// There is no model to show, and why.
struct EmptyState: View {
    let sentence: String

    var body: some View {
        ContentUnavailableView {
            Label("No model to run", systemImage: "shippingbox")
        } description: {
            Text(verbatim: sentence).textSelection(.enabled)
        }
        .background(Theme.ground)
    }
}

/// The four screens; each keeps what was done on it while another one is looked at, and closes its models.
private struct Tabs: View {
    private let shelf: Shelf
    @State private var trying: TryModel
    @State private var comparing: CompareModel
    @State private var testing: SelfTestModel
    @State private var measuring: BenchmarkModel

    init(_ shelf: Shelf, _ equipment: Equipment) {
        self.shelf = shelf
        let gate = EnergyGate(equipment.phone)
        let search = SearchModel(storage: AppEquipment.sentences, home: AppEquipment.indexes, gate: gate)
        _trying = State(initialValue: TryModel(shelf.usable, search: search))
        _comparing = State(initialValue: CompareModel(shelf.usable))
        _testing = State(initialValue: SelfTestModel(shelf))
        _measuring = State(initialValue: BenchmarkModel(shelf.usable, equipment))
    }

    var body: some View {
        VStack(spacing: 0) {
            if shelf.usesUnsigned { UnsignedBanner() }
            TabView {
                Tab("Try", systemImage: "text.bubble") { NavigationStack { TryScreen(model: trying) } }
                Tab("Compare", systemImage: "chart.bar.xaxis") { NavigationStack { CompareScreen(model: comparing) } }
                Tab("Self-test", systemImage: "checkmark.seal") { NavigationStack { SelfTestScreen(model: testing) } }
                Tab("Benchmark", systemImage: "stopwatch") { NavigationStack { BenchmarkScreen(model: measuring) } }
            }
        }
    }
}

/// Says that a model is used that nobody signed: no screen of a debug build can be taken for a release.
private struct UnsignedBanner: View {
    var body: some View {
        Label("Debug build: models that nobody signed", systemImage: "signature")
            .font(.footnote.weight(.medium))
            .frame(maxWidth: .infinity)
            .padding(.vertical, 6)
            .padding(.horizontal, Theme.spacing)
            .background(Theme.warning.opacity(0.25))
            .accessibilityElement(children: .combine)
    }
}
