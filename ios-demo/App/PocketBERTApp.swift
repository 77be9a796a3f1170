import AppModels
import AppParts
import SwiftUI

@main
struct PocketBERTApp: App {
    private let equipment = Result { try AppEquipment.make() }
    private let run = RunFolders.asked(by: ProcessInfo.processInfo.arguments)

    var body: some Scene {
        WindowGroup {
            switch (equipment, run) {
            case (.failure(let error), _): EmptyState(sentence: error.sentence)
            case (.success(let equipment), let run?): HeadlessScreen(HeadlessModel(run, equipment))
            case (.success(let equipment), nil): RootScreen(equipment)
            }
        }
    }
}
