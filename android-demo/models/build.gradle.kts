plugins {
    alias(libs.plugins.kotlin.jvm)
}

kotlin {
    jvmToolchain(17)
}

sourceSets {
    // They are Maven's, see below.
    test { kotlin.setSrcDirs(emptyList<String>()) }
}

// Its tests need the students of `make apps-check`, and run there.
dependencies {
    api(project(":core"))
    api(libs.coroutines.core)
}
